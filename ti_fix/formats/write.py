"""`Embedding` -> a plain safetensors file that every host loads without this program."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save

from ti_fix.embedding import SD2, SD15, T5_XXL, Embedding, Family
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats import metadata

SINGLE_KEY = "emb_params"
"""Key of the only tensor in a file for a model with one text encoder, as kohya's scripts and converters write it."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_NAME_BYTES = 200
"""Of a file name without its ending; file systems allow 255 with it."""

_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]+')
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(\.|$)", re.IGNORECASE)


def to_bytes(
    embedding: Embedding,
    *,
    family: Family | None = None,
    dtype: torch.dtype = torch.float32,
    keep_private: bool = False,
) -> bytes:
    """The embedding as a safetensors file; the same embedding always gives the same bytes.

    Args:
        embedding: what to write; its metadata goes into the header as far as `metadata.travels` lets it.
        family: the kind of model that the file is for; needed only for one half of an SDXL embedding, which is
            otherwise taken for what has just that encoder.
        dtype: float32, float16 or bfloat16.
        keep_private: write captions, paths and picture hashes of the metadata too.

    Raises:
        WrongUse: no vectors, a set of encoders that no model has, or values that float16 cannot hold.
    """
    family = family or embedding.family
    if family is None or not embedding.vectors or not family.keys >= embedding.vectors.keys():
        whose = f" of {family.title}" if family else ""
        raise WrongUse(
            f"{embedding.name!r} has vectors for {_listed(embedding)}, not those{whose}; repair or convert it."
        )
    tensors = {_key(key, family): block for key, block in embedding.vectors.items()}
    return pack(tensors, embedding, family, dtype=dtype, keep_private=keep_private)


def pack(
    tensors: Mapping[str, torch.Tensor],
    embedding: Embedding,
    family: Family,
    *,
    dtype: torch.dtype = torch.float32,
    keep_private: bool = False,
) -> bytes:
    """A safetensors file of these tensors with the header of `embedding`.

    Args:
        tensors: key in the file -> float tensor.
        embedding: whose name and metadata go into the header.
        family: as for `to_bytes`.
        dtype: as for `to_bytes`.
        keep_private: as for `to_bytes`.

    Raises:
        WrongUse: values that float16 cannot hold, or another type than those of `DTYPES`.
    """
    packed = save({key: _stored(block, dtype, key) for key, block in tensors.items()})
    start = 8 + int.from_bytes(packed[:8], "little")
    digest = hashlib.sha256(packed[start:]).hexdigest()
    header = json.loads(packed[8:start])
    about = metadata.header(embedding.name, family, embedding.metadata, digest, keep_private=keep_private)
    # The library writes metadata in an order that changes from run to run, so the header is written here.
    text = json.dumps({"__metadata__": about, **header}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + packed[start:]


def _listed(embedding: Embedding) -> str:
    return " and ".join(embedding.vectors) or "no encoder"


def _key(key: str, family: Family) -> str:
    if family.name in (SD15.name, SD2.name):
        return SINGLE_KEY
    return "t5xxl" if key == T5_XXL.key else key


def _stored(block: torch.Tensor, dtype: torch.dtype, key: str) -> torch.Tensor:
    if dtype not in DTYPES:
        raise WrongUse(f"embeddings are written as float32, float16 or bfloat16, not as {dtype}.")
    stored = block.detach().to("cpu", dtype, copy=True).contiguous()
    if not torch.equal(stored.isfinite(), block.detach().cpu().isfinite()):
        raise WrongUse(f"{key} holds values too large for {dtype}; write float32 or bfloat16.")
    return stored


def write(
    embedding: Embedding,
    path: Path | str,
    *,
    overwrite: bool = False,
    family: Family | None = None,
    dtype: torch.dtype = torch.float32,
    keep_private: bool = False,
) -> Path:
    """Write the embedding; the file is either whole or not there.

    Args:
        embedding: what to write.
        path: a folder that exists, in which the file is named after the trigger, or the name of the file.
        overwrite: replace a file of that name.
        family: as for `to_bytes`.
        dtype: as for `to_bytes`.
        keep_private: as for `to_bytes`.

    Returns:
        Where it was written.

    Raises:
        WrongUse: the embedding cannot be written like that.
        TiFixError: the file exists, or the disk does not take it.
    """
    path = Path(path)
    if path.is_dir():
        path = path / f"{file_name(embedding.name)}.safetensors"
    data = to_bytes(embedding, family=family, dtype=dtype, keep_private=keep_private)
    return write_bytes(path, data, overwrite=overwrite)


def write_bytes(path: Path, data: bytes | Iterable[bytes], *, overwrite: bool = False) -> Path:
    """Write a file by way of a temporary one beside it; folders that are missing are made.

    Args:
        path: its name.
        data: all of it, or piece after piece.
        overwrite: replace a file of that name.

    Raises:
        TiFixError: the file exists and is not to be replaced, or the disk does not take it.
    """
    try:
        _make_folder(path.parent)
        temporary = path.with_name(f".ti_fix-{secrets.token_hex(8)}.tmp")
        try:
            _write_through(temporary, data)
            _put(temporary, path, overwrite=overwrite)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except FileExistsError:
        raise TiFixError(f"{path} exists already; choose another name, or allow overwriting (--overwrite).") from None
    except OSError as error:
        raise TiFixError(f"{path} cannot be written: {_reason(error)}") from error
    except ValueError:
        raise TiFixError(f"{str(path)!r} is no possible file name; choose another.") from None
    return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def _write_through(path: Path, data: bytes | Iterable[bytes]) -> None:
    # Not `tempfile`: its files are readable by their owner only, and would stay so under their final name.
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with open(number, "wb") as stream:
        stream.writelines([data] if isinstance(data, bytes) else data)
        stream.flush()
        os.fsync(stream.fileno())


def _put(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give the finished file its name.

    Raises:
        FileExistsError: the name is taken.
    """
    if overwrite:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # unlike a rename it never replaces, not even a file made in this very moment
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        temporary.replace(path)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space and try again."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "there is no permission to write there; choose another folder or change its permissions."
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long; choose a shorter one."
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return "a file and a folder are in each other's way; choose another name."
    return f"{error.strerror or error}; check the disk."


def file_name(trigger: str) -> str:
    """A file name, without ending, that every system takes; the trigger itself where that is possible.

    Hosts call an embedding by its file name, so as little as possible is changed: characters that Windows forbids,
    dots and spaces at the ends, device names (``con``), and length.
    """
    name = _FORBIDDEN.sub("/", unicodedata.normalize("NFC", trigger)).strip("/. ").replace("/", "_")
    name = name.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore").rstrip(". ")
    return f"_{name}" if _RESERVED.match(name) else name or "embedding"
