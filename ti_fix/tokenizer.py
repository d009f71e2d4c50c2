"""CLIP's tokenizer in plain Python: text <-> token ids, without a host and without a model.

Byte-pair encoding over UTF-8 bytes (Sennrich et al. 2016, arXiv 1508.07909) with the merges that OpenAI published
with CLIP (Radford et al. 2021, arXiv 2103.00020). Every CLIP text encoder of the Stable Diffusion families uses it.
Two hosts also run ``ftfy`` over the text (mojibake, curly quotes); that is left out here, as it is in diffusers.
"""

from __future__ import annotations

import gzip
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path

BPE_FILE = Path(__file__).parent / "data" / "bpe_simple_vocab_16e6.txt.gz"

BOS = "<|startoftext|>"
EOS = "<|endoftext|>"

_WORD_END = "</w>"
_MERGES = 49408 - 2 * 256 - 2  # every id but those of the bytes, of the bytes that end a word, of BOS and of EOS

_SPECIAL = re.compile(r"(<\|startoftext\|>|<\|endoftext\|>)")
# CLIP's pattern; `_classes` first writes "a" for any other letter (\p{L}) and "0" for any other number (\p{N}).
_PIECE = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+")
_ASCII_SEPARATORS = dict.fromkeys(range(0x1C, 0x20), "!")  # white space to Python, symbols to Unicode and to CLIP


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BytePairs:
    """A vocabulary and its merges: CLIP's 49,408 tokens, or what a model's own files say.

    Attributes:
        ranks: pair of symbols -> its place in the list of merges; a lower one is merged first.
        ids: token -> id. Symbols are bytes written as printable characters; ``</w>`` marks the end of a word.
        tokens: the tokens by id.
    """

    ranks: Mapping[tuple[str, str], int]
    ids: Mapping[str, int]
    tokens: tuple[str, ...]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without start, end and padding; symbols that it does not know become EOS."""
        return [token for piece in _pieces(text) for token in _encode_piece(piece, self)]


def encode(text: str) -> list[int]:
    """Token ids of a text, without start, end and padding. Case does not matter.

    A literal ``<|endoftext|>`` in the text is that token, as in transformers.
    """
    return published().encode(text)


def decode(ids: Iterable[int]) -> str:
    """The text of these ids: lower case, one space after each word or sign.

    Raises:
        ValueError: an id is outside CLIP's vocabulary.
    """
    tokens = published().tokens
    symbols = []
    for each in ids:
        if not 0 <= each < len(tokens):
            raise ValueError(f"{each} is no CLIP token id; they run from 0 to {len(tokens) - 1}.")
        symbols.append(tokens[each].replace(_WORD_END, " "))
    byte_of = {char: byte for byte, char in _byte_symbols().items()} | {" ": ord(" ")}
    return bytes(byte_of[char] for char in "".join(symbols)).decode("utf-8", errors="replace").strip()


def is_ordinary_word(text: str) -> bool:
    """Whether prompts contain this text without meaning an embedding: ``cat``, ``a``, ``1girl``.

    True for what is one token of the vocabulary as a whole, also after leading digits (each digit is a token).
    An embedding with such a name takes over the word in every prompt.
    """
    core = text.strip().lstrip("0123456789").lower()
    if core.isascii() and any(c.isalpha() for c in core):  # nearly every name, decided without merging
        return core + _WORD_END in published().ids
    return bool(text.strip()) and len(encode(core)) <= 1


def _pieces(text: str) -> Iterator[str]:
    """What is encoded on its own: a word, a digit, a row of signs, a special token."""
    for part in _SPECIAL.split(text):
        if part in (BOS, EOS):
            yield part
            continue
        normal = unicodedata.normalize("NFC", part).lower()
        for match in _PIECE.finditer(_classes(normal)):
            yield normal[match.start() : match.end()]


def _classes(normal: str) -> str:
    """The text, character for character, with the letters and numbers beyond ASCII replaced by ``a`` and ``0``."""
    if normal.isascii():
        return normal.translate(_ASCII_SEPARATORS)
    return "".join(map(_class, normal))


def _class(char: str) -> str:
    if char.isascii():
        return _ASCII_SEPARATORS.get(ord(char), char)
    category = unicodedata.category(char)
    if category[0] in "LN":
        return "a" if category[0] == "L" else "0"
    return " " if char.isspace() else "!"


@lru_cache(maxsize=16384)
def _encode_piece(piece: str, vocabulary: BytePairs) -> tuple[int, ...]:
    """Ids of one piece of text: merge the pair of lowest rank, everywhere in the piece, until none is left."""
    unknown = vocabulary.ids.get(EOS, 0)  # CLIP's tokenizer files name the end token for what they do not know
    if piece in (BOS, EOS):
        return (vocabulary.ids.get(piece, unknown),)
    byte_symbols = _byte_symbols()
    word = [byte_symbols[byte] for byte in piece.encode("utf-8", errors="replace")]
    word[-1] += _WORD_END
    while len(word) > 1:
        pair = min(pairwise(word), key=lambda p: vocabulary.ranks.get(p, math.inf))
        if pair not in vocabulary.ranks:
            break
        word = _merge(word, pair)
    return tuple(vocabulary.ids.get(symbol, unknown) for symbol in word)


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    """The word with each occurrence of the pair joined into one symbol, from the left."""
    merged: list[str] = []
    i = 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            merged.append(pair[0] + pair[1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return merged


@lru_cache(maxsize=1)
def _byte_symbols() -> dict[int, str]:
    """Byte -> the printable character that stands for it in the BPE file, in the order of the first 256 ids.

    Bytes that are printable in Latin-1 stand for themselves, the others for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


@lru_cache(maxsize=1)
def published() -> BytePairs:
    """The vocabulary that was published with CLIP; the first line of its file is a version."""
    with gzip.open(BPE_FILE, "rt", encoding="utf-8") as lines:
        merges = [(first, second) for first, second in map(str.split, islice(lines, 1, _MERGES + 1))]
    symbols = list(_byte_symbols().values())
    tokens = (*symbols, *(s + _WORD_END for s in symbols), *map("".join, merges), BOS, EOS)
    return BytePairs(
        ranks={pair: rank for rank, pair in enumerate(merges)},
        ids={token: index for index, token in enumerate(tokens)},
        tokens=tokens,
    )
