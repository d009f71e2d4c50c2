"""Text as it should reach a tokenizer: without characters that nobody sees and that break a trigger in two."""

from __future__ import annotations

import re
import unicodedata

_JOINERS = "\u200c\u200d"
"""They shape letters in Persian and Indic writing and join emoji, so they stay between characters beyond ASCII."""

_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
_JOINER_BY_ASCII = re.compile(f"(?:^|(?<=[\\x00-\\x7f]))[{_JOINERS}]+|[{_JOINERS}]+(?=[\\x00-\\x7f]|$)")
_BRACKETS = str.maketrans("\uff08\uff09\uff3b\uff3d\uff5b\uff5d\uff1c\uff1e", "()[]{}<>")
_WIDE_WEIGHT = re.compile("\uff1a" + r"(?=\s*[+-]?(?:\d+\.?\d*|\.\d+)\s*[)\]])")


def clean_text(text: str) -> str:
    """The text with composed accents and ASCII brackets, without zero-width, byte-order and direction marks.

    Brackets are prompt syntax; a full-width colon becomes one only where it gives a weight.
    """
    shown = _JOINER_BY_ASCII.sub("", _INVISIBLE.sub("", text))
    return unicodedata.normalize("NFC", _WIDE_WEIGHT.sub(":", shown.translate(_BRACKETS)))


def what_was_cleaned(text: str) -> list[str]:
    """Names of the characters that `clean_text` takes out or replaces, each once; empty for a clean text."""
    kept = clean_text(text)
    if kept == text:
        return []
    gone = dict.fromkeys(c for c in text if text.count(c) > kept.count(c))
    return [f"U+{ord(c):04X} {unicodedata.name(c, 'unnamed').lower()}" for c in gone]
