"""Checks of tokenizers: vocabulary, merges, special tokens, lengths, agreement, and the texts that they will get."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from ti_fix.align.check import Check, Outcome
from ti_fix.align.rebind import published_merges, rebinding
from ti_fix.align.text import clean_text, what_was_cleaned
from ti_fix.embedding import VOCABULARY_SIZE, Severity
from ti_fix.text_model import Change, TextEncoder, TextModel, TextTokenizer
from ti_fix.tokenizer import encode, published

PROBES = (
    "a photo of a cat",
    "Masterpiece, best quality, 1girl, (solo:1.2), 8k",
    "the artist's café; naïve über façade",
    "red,green and blue 2024-06-01 100%",
    "猫 und любовь ✨",
    "word " * 80,
)
"""Texts that every sound implementation of CLIP's tokenizer encodes alike; the last one is longer than one chunk."""

SEAMS = ("wow!", "don't ''quote'' it\u2019s", "Ⅷ ½ ﬁne", "e\u0301cole", "a\u00a0b\tc", "&amp; &lt;3", "中文字")
"""Texts on which implementations differ: slow with and without ftfy, fast, open_clip's. Encoders should agree."""


def digest(items: Iterable[str]) -> str:
    """Content hash, the first 16 digits of a SHA-256."""
    return hashlib.sha256("\n".join(items).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@lru_cache(maxsize=1)
def _published_digests() -> tuple[str, str]:
    """Of the published tokens and merges."""
    return digest(published().tokens), digest(map(" ".join, published_merges()))


def _tokenizers(model: TextModel) -> Iterator[tuple[TextEncoder, TextTokenizer]]:
    for encoder in model.encoders:
        if encoder.tokenizer is not None and encoder.spec.bos_id is not None:  # T5 has a tokenizer of its own kind
            yield encoder, encoder.tokenizer


def _vocabulary(check: Check, model: TextModel) -> Iterator[Outcome]:
    right = published().ids
    expected = f"{VOCABULARY_SIZE} tokens, {_published_digests()[0]}"
    for encoder, tokenizer in _tokenizers(model):
        if tokenizer.tokens is None:
            continue
        if tokenizer.tokens == right:
            yield check.good(expected, expected, encoder)
            continue
        found = f"{len(tokenizer.tokens)} tokens, {digest(sorted(tokenizer.tokens, key=tokenizer.tokens.__getitem__))}"
        message = (
            f"The vocabulary is not CLIP's: {_token_differences(tokenizer.tokens, right)}. Words reach the encoder as "
            "other words. The published vocabulary is to be used."
        )
        yield check.bad("error", expected, found, message, encoder, [rebinding(encoder)])


def _token_differences(found: Mapping[str, int], right: Mapping[str, int]) -> str:
    other = [(t, i) for t, i in right.items() if found.get(t) != i]
    more = [t for t in found if t not in right]
    shown = ", ".join(f"{t!r} has id {found.get(t, 'none')} instead of {i}" for t, i in other[:3])
    told = f"{len(other)} of {len(right)} ids differ ({shown})" if other else f"{len(more)} tokens too many"
    return f"{told}, {len(more)} unknown tokens" if other and more else told


def _merges(check: Check, model: TextModel) -> Iterator[Outcome]:
    right = published_merges()
    expected = f"{len(right)} merges, {_published_digests()[1]}"
    for encoder, tokenizer in _tokenizers(model):
        if tokenizer.merges is None:
            continue
        merges = tuple(tokenizer.merges)
        if merges == right:
            yield check.good(expected, expected, encoder)
            continue
        found = f"{len(merges)} merges, {digest(map(' '.join, merges))}"
        same = sum(a == b for a, b in zip(merges, right, strict=False))
        message = (
            f"The list of merges is not CLIP's: {len(right) - same} of {len(right)} differ or are in another place, so "
            "words are cut into other pieces. The published list is to be used."
        )
        yield check.bad("error", expected, found, message, encoder, [rebinding(encoder)])


def _special_ids(check: Check, model: TextModel) -> Iterator[Outcome]:
    for encoder, tokenizer in _tokenizers(model):
        spec = encoder.spec
        right = {"start": spec.bos_id, "end": spec.eos_id, "pad": spec.pad_id}
        ids = {"start": tokenizer.bos_id, "end": tokenizer.eos_id, "pad": tokenizer.pad_id}
        expected, found = _named(right), _named(ids)
        if ids == right:
            yield check.good(expected, found, encoder)
            continue
        wrong = ", ".join(f"{k} {ids[k]} instead of {right[k]}" for k in right if ids[k] != right[k])
        message = (
            f"The tokenizer of {spec.title} has wrong special tokens ({wrong}). Short prompts are filled up or ended "
            "with something that the encoder never saw there. The published tokenizer is to be used; ids of a config "
            "are never copied onto a tokenizer."
        )
        yield check.bad("error", expected, found, message, encoder, [rebinding(encoder)])


def _named(ids: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in ids.items())


def _lengths(check: Check, model: TextModel) -> Iterator[Outcome]:
    """Each tokenizer's own limit, and the id lists that it really makes."""
    for encoder, tokenizer in _tokenizers(model):
        spec = encoder.spec
        expected = f"{spec.max_length} ids: start, text, end, pad"
        fault = _length_fault(encoder, tokenizer)
        if not fault:
            yield check.good(expected, expected, encoder)
            continue
        message = (
            f"{spec.title}: {fault}. Both encoders must get lists of {spec.max_length} ids of the same form, or their "
            "outputs cannot be joined, or a prompt is cut or not ended. The published tokenizer is to be used."
        )
        yield check.bad("error", expected, fault, message, encoder, [rebinding(encoder)])


def _length_fault(encoder: TextEncoder, tokenizer: TextTokenizer) -> str:
    spec = encoder.spec
    if tokenizer.max_length != spec.max_length:
        limit = "has no limit" if tokenizer.max_length is None else f"cuts at {tokenizer.max_length} ids"
        return f"the tokenizer {limit}"
    if tokenizer.pack is None:
        return ""
    for probe in PROBES:
        ids = tokenizer.pack(probe)
        text = tokenizer.encode(probe)[: spec.max_length - 2]
        if len(ids) != spec.max_length:
            return f"a list of {len(ids)} ids"
        if ids[0] != spec.bos_id:
            return f"no start token (the first id is {ids[0]})"
        if spec.eos_id not in ids:
            return "no end token"
        if ids[1 : len(text) + 2] != [*text, spec.eos_id]:
            return f"the end token stands at {ids.index(spec.eos_id)} instead of {len(text) + 1}"
    return ""


def _agreement(check: Check, model: TextModel) -> Iterator[Outcome]:
    """Each tokenizer against the published algorithm on common texts, and against its own twin and the others."""
    pairs = list(_tokenizers(model))
    expected = f"the same ids for {len(PROBES) + len(SEAMS)} texts"
    odd = {e.place: [p for p in PROBES if t.encode(p) != encode(p)] for e, t in pairs}
    sound = [pair for pair in pairs if not odd[pair[0].place]]
    for encoder, tokenizer in pairs:
        mixed = [p for p in SEAMS if tokenizer.twin and tokenizer.twin(p) != tokenizer.encode(p)]
        apart = _apart(tokenizer, sound[0][1]) if not odd[encoder.place] else []
        severity: Severity = "error" if odd[encoder.place] else "warning"
        if odd[encoder.place]:
            what = f"{odd[encoder.place][0][:40]!r} gets other ids than CLIP's"
        elif apart:
            what = f"{apart[0]!r} gets other ids than in {sound[0][0].spec.title}"
            if "open_clip" in (tokenizer.origin, sound[0][1].origin):
                yield check.bad("note", expected, what, f"{encoder.spec.title}: {what}. {_OPEN_CLIP}", encoder)
                continue
        elif mixed:
            what = f"{mixed[0]!r} gets other ids from the slow than from the fast tokenizer"
        else:
            yield check.good(expected, expected, encoder)
            continue
        message = (
            f"{encoder.spec.title}: {what}. Slow and fast tokenizers, or two versions of the files, are mixed; one "
            "prompt means two things. The published tokenizer is to be used for every encoder."
        )
        yield check.bad(severity, expected, what, message, encoder, [rebinding(e) for e, _ in pairs])


_OPEN_CLIP = (
    "open_clip's tokenizer, which this WebUI uses, also resolves HTML entities and broken characters. Every picture of "
    "this WebUI was made that way; write such signs plainly."
)


def _apart(one: TextTokenizer, other: TextTokenizer) -> list[str]:
    return [p for p in SEAMS if _without_pad(one, p) != _without_pad(other, p)]


def _without_pad(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Ids with the padding sign told apart: bigG's ``!`` is its pad token in transformers (id 0), a word elsewhere."""
    return [256 if i == 0 else i for i in tokenizer.encode(text)]


def _exclamation(check: Check, model: TextModel) -> Iterator[Outcome]:
    for encoder, tokenizer in _tokenizers(model):
        ids = tokenizer.encode("wow !")
        if ids and ids[-1] == 0:
            message = (
                "A ! in a prompt becomes id 0 here, which this encoder also pads with; open_clip makes it id 256. "
                "Prompts with ! give other pictures than in AUTOMATIC1111, which uses that one."
            )
            yield check.bad("note", "! is id 256", "! is id 0", message, encoder, [rebinding(encoder)])
        else:
            yield check.good("! is id 256", f"! is id {ids[-1] if ids else None}", encoder)


def _texts(check: Check, model: TextModel) -> Iterator[Outcome]:
    unclean = [text for text in model.texts if clean_text(text) != text]
    if not unclean:
        if model.texts:
            yield check.good("no invisible characters", f"{len(model.texts)} texts are clean")
        return
    names = list(dict.fromkeys(name for text in unclean for name in what_was_cleaned(text)))
    found = ", ".join(names[:4]) or "accents in two characters"
    message = (
        f"{len(unclean)} of {len(model.texts)} prompts and names hold characters that break words or triggers apart "
        f"without being seen ({found}), first in {unclean[0][:60]!r}. They are taken out before the text is encoded."
    )
    change = Change(part="texts", make=lambda m: tuple(map(clean_text, m.texts)))
    yield check.bad("warning", "no invisible characters", found, message, None, [change])


TOKENIZER_CHECKS = (
    Check(code="vocabulary", title="Vocabulary", run=_vocabulary, once=True),
    Check(code="merges", title="Merges", run=_merges, once=True),
    Check(code="special-ids", title="Start, end and pad token", run=_special_ids),
    Check(code="id-lists", title="Length and padding of the id lists", run=_lengths, once=True),
    Check(code="agreement", title="Slow, fast and published tokenizer agree", run=_agreement, once=True),
    Check(code="exclamation", title="The exclamation mark", run=_exclamation, once=True),
    Check(code="text", title="Invisible characters", run=_texts),
)
