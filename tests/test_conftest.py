"""The guard against the network, since every claim of working offline rests on it."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from tests.conftest import NetworkUsed


@pytest.mark.parametrize("url", ["http://example.org/", "http://127.0.0.1:9/", "http://[2001:db8::1]/"])
def test_no_page_can_be_fetched(url):
    with pytest.raises(NetworkUsed):
        urllib.request.urlopen(url, timeout=1)


@pytest.mark.parametrize("name", ["connect", "connect_ex", "bind"])
@pytest.mark.parametrize("host", ["127.0.0.1", "198.51.100.1", ""])
def test_no_socket_can_be_used(name, host):
    with socket.socket() as sock, pytest.raises(NetworkUsed):
        getattr(sock, name)((host, 9))


def test_no_datagram_can_be_sent():
    with socket.socket(type=socket.SOCK_DGRAM) as sock, pytest.raises(NetworkUsed):
        sock.sendto(b"", ("198.51.100.1", 9))


@pytest.mark.loopback
def test_the_marker_opens_this_computer_and_nothing_else():
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        with pytest.raises(NetworkUsed):
            client.connect_ex(("198.51.100.1", 9))
        with pytest.raises(NetworkUsed):
            socket.getaddrinfo("example.org", 80)
