"""What holds for every test: no network, one torch thread."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read by diffusers and transformers when they are imported


class NetworkUsed(Exception):
    """A test, or what it runs, wanted to reach another computer. No OSError, which a program may swallow."""


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_network(request, monkeypatch):
    """No connection, datagram or look-up; this computer's own addresses where a test is marked ``loopback``."""
    loopback = request.node.get_closest_marker("loopback") is not None

    def guard(owner, name, host_of):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            host = host_of(*args)
            if host is not None and not (loopback and _is_loopback(host)):
                raise NetworkUsed(f"{name}: {host}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in ("bind", "connect", "connect_ex", "sendto"):
        guard(socket.socket, name, _host)
    guard(socket, "getaddrinfo", lambda host, *_, **__: host or "any address")


def _host(sock, *args):
    """Whom a call of a socket's method concerns; the address is its last argument. None for a local pipe."""
    return args[-1][0] if sock.family in (socket.AF_INET, socket.AF_INET6) else None


def _is_loopback(host):
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
