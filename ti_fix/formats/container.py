"""Which container a file is: told by its first bytes, never by its ending.

The ending only helps to word the message for a file that is none of them.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import PurePath

from ti_fix.errors import UnreadableFile, quoted
from ti_fix.formats import safetensors_file, torch_file
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container

_BINARY = {
    b"\x1f\x8b": "a gzip archive",
    b"Rar!": "a RAR archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"GGUF": "a GGUF model",
    b"%PDF": "a PDF document",
    b"MZ": "a Windows program",
    b"\x7fELF": "a Linux program",
    b"\x89HDF": "an HDF5 file",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x93NUMPY": "a bare numpy array",
    b"SQLite format": "a database",
}


def open_container(source: Source, name: str) -> Container:
    """What the file holds, read as far as its structure.

    Args:
        source: the bytes.
        name: file name, for the wording of messages.

    Raises:
        UnreadableFile: with the code of the damage and what to do.
    """
    if source.size == 0:
        raise UnreadableFile("empty", "the file is empty (0 bytes); download it again.")
    head = source.head
    if safetensors_file.looks_like(head):  # before pickle: a header of 640 bytes begins as a pickle does
        return safetensors_file.read(source)
    if torch_file.is_zip(head):
        return torch_file.read_zip(source)
    if torch_file.looks_like_pickle(head):
        return torch_file.read_legacy(source)
    _explain(head, source, name)
    raise AssertionError("unreachable")


def _explain(head: bytes, source: Source, name: str) -> None:
    """Say what a file is that is no container of tensors.

    Raises:
        UnreadableFile: always.
    """
    text = _text(head)
    if text is not None:
        raise _explain_text(text)
    for magic, what in _BINARY.items():
        if head.startswith(magic):
            raise UnreadableFile("not-an-embedding", f"it is {what}, not an embedding; {_PLACE}")
    if head[257:262] == b"ustar":
        raise UnreadableFile("not-an-embedding", f"it is a tar archive, not an embedding; {_PLACE}")
    if not head.strip(b"\0"):
        raise UnreadableFile("damaged", "it holds only zero bytes, an interrupted download; download it again.")
    if PurePath(name.lower().removesuffix(".corrupted")).suffix == ".safetensors":
        safetensors_file.read(source)
        raise UnreadableFile(
            "bad-header", "its beginning (the safetensors header, JSON) is damaged; download it again."
        )
    raise UnreadableFile(
        "damaged", "it begins like no kind of file that is known here: damaged, or not an embedding; download it again."
    )


_PLACE = "unpack it if it is an archive, or move it out of the embeddings folder."


def _text(head: bytes) -> str | None:
    """The beginning of a text file, None for binary data."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return head.decode("utf-16", "ignore").strip()
    printable = sum(32 <= byte < 127 or byte in b"\t\r\n\f" or byte >= 128 for byte in head[:256])
    if printable < len(head[:256]) or b"\0" in head:
        return None
    try:
        return head.removeprefix(b"\xef\xbb\xbf").decode("utf-8").strip()
    except UnicodeDecodeError as error:
        if error.start > len(head) - 4:  # a character cut by the end of what was read
            return head[: error.start].decode("utf-8", "ignore").strip()
        return None


def _explain_text(text: str) -> UnreadableFile:
    if re.match(r"version https://(git-lfs|hawser)\.github\.com", text):
        return UnreadableFile(
            "lfs-pointer",
            "it is a Git LFS pointer, a note about the file and not the file itself; download the real file "
            "(git lfs pull, or the download button of the page).",
        )
    if re.match(r"(<\?xml[^>]*>\s*)?<Error>", text):
        code = re.search(r"<Code>([^<]{1,60})", text)
        reason = f" ({code.group(1)})" if code else ""
        return UnreadableFile(
            "web-page", f"it is an error message from the site{reason}, saved in its place; {_SIGN_IN}"
        )
    if re.match(r"<(!doctype|html|head|\?xml|script|body|!--)", text, re.IGNORECASE):
        return UnreadableFile("web-page", f"it is a web page{_title(text)}, saved in place of the file; {_SIGN_IN}")
    if text.startswith(("{", "[")):
        return UnreadableFile("json-error", _explain_json(text))
    if not text:
        return UnreadableFile("empty", "it holds nothing but white space; download it again.")
    shown = quoted(" ".join(text.split()))
    return UnreadableFile("plain-text", f"it is a text file ({shown}), not an embedding; download it again.")


_SIGN_IN = "the site probably wants you to log in first; download it again in the browser."


def _title(page: str) -> str:
    found = re.search(r"<title[^>]*>(.*?)</title", page, re.IGNORECASE | re.DOTALL)
    words = " ".join(html.unescape(found.group(1)).split()) if found else ""
    return f" ({quoted(words)})" if words else ""


def _explain_json(text: str) -> str:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    said = []
    if isinstance(content, dict):
        inner = content["error"] if isinstance(content.get("error"), dict) else {}
        keys = ("error", "message", "detail", "errors")
        said = [v for part in (content, inner) for k in keys if isinstance(v := part.get(k), str)]
    if said:
        return f"it is an error message from the site ({'; '.join(said)[:160]}), saved in place of the file; {_SIGN_IN}"
    return "it is a JSON text, not an embedding; download the embedding itself."
