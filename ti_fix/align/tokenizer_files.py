"""A tokenizer's files as transformers writes them, of any age, without transformers.

``vocab.json`` with ``merges.txt`` are the slow form, ``tokenizer.json`` is the fast one; a folder may hold both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ti_fix.align.rebind import packer, pairs_of, with_added
from ti_fix.errors import TiFixError
from ti_fix.text_model import TextTokenizer
from ti_fix.tokenizer import EOS

_LARGEST = 100_000
"""``model_max_length`` above this is transformers' way of saying that there is no limit."""

_MAX_FILE = 64 * 2**20


def read_tokenizer(folder: Path) -> TextTokenizer | None:
    """The tokenizer in a folder; None where it holds none.

    Raises:
        TiFixError: a file is damaged.
    """
    slow, fast = _slow(folder), _fast(folder)
    core = slow or fast
    if core is None:
        return None
    settings = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    added = {**_added_tokens(folder, settings), **core.added, **(fast.added if fast else {})}
    ids = {**core.tokens, **added}
    special = {name: _id_of(settings.get(f"{name}_token"), ids) for name in ("bos", "eos", "pad")}
    beyond = {token: i for token, i in added.items() if core.tokens.get(token) != i}
    length = settings.get("model_max_length")
    length = int(length) if isinstance(length, (int, float)) and length < _LARGEST else None
    ends = fast.ends if fast else True  # the slow tokenizer's own code puts start and end
    encode = core.encoder(beyond)
    return TextTokenizer(
        encode=encode,
        pack=packer(encode, special["bos"] if ends else None, special["eos"] if ends else None, special["pad"], length),
        twin=fast.encoder(beyond) if slow and fast else None,
        tokens=core.tokens,
        merges=core.merges,
        added=beyond,
        bos_id=special["bos"],
        eos_id=special["eos"],
        pad_id=special["pad"],
        max_length=length,
        origin=" + ".join(name for name, core in (("vocab.json", slow), ("tokenizer.json", fast)) if core),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    tokens: Mapping[str, int]
    merges: tuple[tuple[str, str], ...]
    added: Mapping[str, int]
    ends: bool = True

    def encoder(self, added: Mapping[str, int]) -> Callable[[str], list[int]]:
        return with_added(pairs_of(self.tokens, self.merges).encode, added)


def _slow(folder: Path) -> _Core | None:
    tokens = read_json(folder / "vocab.json")
    merges = folder / "merges.txt"
    if not tokens or not merges.is_file():
        return None
    lines = _text(merges).split("\n")
    pairs = tuple(_pair(line, merges) for line in lines if line.strip() and not line.startswith("#version"))
    return _Core(tokens=_ids(tokens, folder / "vocab.json"), merges=pairs, added={})


def _fast(folder: Path) -> _Core | None:
    path = folder / "tokenizer.json"
    content = read_json(path)
    if not content:
        return None
    try:
        model = content["model"]
        merges = tuple(_pair(m, path) if isinstance(m, str) else (str(m[0]), str(m[1])) for m in model["merges"])
        added = {str(t["content"]): int(t["id"]) for t in content.get("added_tokens") or ()}
        tokens = _ids(model["vocab"], path)
    except (KeyError, TypeError, ValueError, IndexError):
        raise TiFixError(f"{path} is no CLIP tokenizer (a vocabulary or merges are missing); get it again.") from None
    return _Core(tokens=tokens, merges=merges, added=added, ends=_puts_ends(content.get("post_processor")))


def _puts_ends(post_processor: Any) -> bool:
    """Whether the fast tokenizer puts the start and the end token."""
    return EOS in json.dumps(post_processor) if post_processor else False


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    found = {str(k): v for k, v in read_json(folder / "added_tokens.json").items() if isinstance(v, int)}
    decoder = settings.get("added_tokens_decoder")
    for index, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and str(index).isdigit():
            found[str(token.get("content"))] = int(index)
    return found


def _id_of(token: Any, ids: Mapping[str, int]) -> int | None:
    """Special tokens are written as text or as a table with ``content``."""
    content = token.get("content") if isinstance(token, dict) else token
    return ids.get(content) if isinstance(content, str) else None


def _pair(line: str, path: Path) -> tuple[str, str]:
    first, _, second = line.rstrip("\r").partition(" ")
    if not second:
        raise TiFixError(f"{path} holds a line that is no pair ({line[:40]!r}); get it again.")
    return first, second


def _ids(tokens: Mapping[str, Any], path: Path) -> dict[str, int]:
    if not all(isinstance(i, int) for i in tokens.values()):
        raise TiFixError(f"{path} is no vocabulary (token -> id); get it again.")
    return dict(tokens)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON table; empty where the file is not there.

    Raises:
        TiFixError: it is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError):
        raise TiFixError(f"{path} is not JSON; get it again.") from None
    if not isinstance(content, dict):
        raise TiFixError(f"{path} is not a table; get it again.")
    return content


def _text(path: Path) -> str:
    if path.stat().st_size > _MAX_FILE:
        raise TiFixError(f"{path} is too large for what it should be; get it again.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TiFixError(f"{path} is not UTF-8 text; get it again.") from None
