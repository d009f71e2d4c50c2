"""Names that prompts cannot call, or that take over something else.

Contract of the hosts: the name is tokenised and its token ids are searched in the prompt, longest first; brackets,
colons and the like are parsed away before that (A1111 and Forge, `prompt_parser`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ti_fix.embedding import Embedding, Finding
from ti_fix.tokenizer import encode, is_ordinary_word

_SYNTAX = re.compile(r"[()\[\]{}:,|<>\\]+")
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\u00ad\u180e\x00-\x1f\x7f]")
EVERYDAY = 20_000
"""Token ids below this are words that everybody types (CLIP's ids follow how often a token was merged); beyond them lie
rare words and names such as ``ohwx``, which trainers recommend as triggers."""

_KEYWORD = re.compile(r"\b(?:AND|BREAK)\b")
"""Words at which WebUIs cut a prompt, also within a name: ``AND-ti`` is cut, ``and-ti`` is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """A name, what else it can be called, and what is to be said about it."""

    trigger: str
    aliases: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def judge_name(trigger: str, *, converted: bool = False) -> Naming:
    """Look at one trigger.

    Args:
        trigger: as the host would use it.
        converted: the embedding is converted at load, so that until now its name was plain text in every prompt; then
            an ordinary word is not taken over and only an alias is registered.
    """
    clean = _INVISIBLE.sub("", trigger).strip()
    if not clean:
        clean = "embedding"
    findings: list[Finding] = []
    aliases: list[str] = []
    if clean != trigger:
        findings.append(_cleaned(trigger, clean))
        aliases.append(trigger)
    plain = _plain(clean)
    if plain != clean:
        findings.append(_syntax(clean, plain))
        aliases.append(plain)
    if _KEYWORD.search(clean):
        lower = _KEYWORD.sub(lambda found: found[0].lower(), clean)
        aliases.append(f"{lower}-ti" if _KEYWORD.fullmatch(clean) else lower)
        findings.append(_keyword(clean, aliases[-1]))
    elif is_ordinary_word(clean):
        findings.append(_ordinary(clean, converted))
        if converted:
            return Naming(trigger=f"{clean}-ti", aliases=tuple(aliases), findings=tuple(findings))
    return Naming(trigger=clean, aliases=tuple(aliases), findings=tuple(findings))


def renamed(embedding: Embedding, naming: Naming) -> Embedding:
    """The embedding under the judged name; the same object where nothing changes."""
    aliases = tuple(dict.fromkeys(a for a in (*embedding.aliases, *naming.aliases) if a != naming.trigger))
    if naming.trigger == embedding.name and aliases == embedding.aliases:
        return embedding
    return replace(embedding, name=naming.trigger, aliases=aliases)


def _plain(name: str) -> str:
    """The name without prompt syntax and full-width forms."""
    folded = unicodedata.normalize("NFKC", name)
    if folded != name and not any("FULLWIDTH" in unicodedata.name(c, "") or c == "\u3000" for c in name):
        folded = name  # compatibility forms that are no full-width signs stay as they are
    if not _SYNTAX.search(folded):
        return folded
    words = _SYNTAX.sub(" ", folded).split()
    return "-".join(words) or "embedding"


def _cleaned(name: str, clean: str) -> Finding:
    shown = name.encode("unicode_escape").decode("ascii")
    return Finding(
        code="invisible-characters",
        severity="note",
        message=f"The name '{shown}' holds characters that cannot be seen or typed: it is called {clean!r}.",
        repaired=f"Called it {clean!r}.",
    )


def _syntax(name: str, plain: str) -> Finding:
    signs = " ".join(dict.fromkeys(_SYNTAX.findall(unicodedata.normalize("NFKC", name)))) or "full-width letters"
    message = f"The name {name!r} holds signs that prompts read as syntax ({signs}); write its alias {plain!r}."
    return Finding(code="prompt-syntax", severity="warning", message=message)


def _keyword(name: str, alias: str) -> Finding:
    message = f"WebUIs cut prompts at AND and BREAK, so {name!r} cannot be called; use its alias {alias!r}."
    return Finding(code="keyword", severity="warning", message=message)


def _ordinary(name: str, converted: bool) -> Finding:
    if converted:
        message = (
            f"The name {name!r} is an ordinary word; so that no prompt changes behind your back the converted "
            f"embedding is called '{name}-ti'."
        )
        return Finding(code="ordinary-word", severity="note", message=message, repaired=f"Called it '{name}-ti'.")
    message = (
        f"The name {name!r} is an ordinary word: every prompt that uses the word gets this embedding. Rename the file "
        "if you do not want that."
    )
    if encode(name)[-1] >= EVERYDAY:
        return Finding(code="ordinary-word", severity="note", message=message)
    return Finding(code="ordinary-word", severity="warning", message=f"{message} Rename it.")


def fold(name: str) -> str:
    """Names that fold alike have the same token ids: the tokenizer drops case and composes accents."""
    return unicodedata.normalize("NFC", name).casefold()


def prefixes(names: Iterable[str]) -> dict[str, list[str]]:
    """Folded name -> the longer names that begin with it."""
    ordered = sorted({fold(n) for n in names})
    found: dict[str, list[str]] = {}
    for i, name in enumerate(ordered):
        for longer in ordered[i + 1 : i + 4]:
            if not longer.startswith(name):
                break
            found.setdefault(name, []).append(longer)
    return found
