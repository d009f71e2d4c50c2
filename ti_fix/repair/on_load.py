"""What to do with one file while a host reads its embeddings: a pure decision, carried out by the load hook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ti_fix.additions import Action
from ti_fix.embedding import CLIP_G, CLIP_L, FAMILIES, SD15, SDXL, Embedding, Family, Finding, Vocabulary
from ti_fix.formats import Parsed
from ti_fix.options import option
from ti_fix.repair.fit import is_conversion
from ti_fix.repair.result import RepairResult, repair
from ti_fix.tokenizer import is_ordinary_word

SD15_WAYS = ("convert", "L only", "skip")
LOG_LEVELS = ("all", "problems", "nothing")

HALVED = "clip_l half"
"""Label of an SDXL embedding on a model that reads one half of it."""

OPENING = frozenset({"wrong-ending", "unusual-ending", "renamed-by-host", "pair", "picture-form", "inner-name"})
ROWS = frozenset({"uneven-rows", "empty-half"})
NAMES = frozenset({"invisible-characters", "prompt-syntax", "keyword", "ordinary-word"})
"""Finding codes by the setting that allows their repair; all other repairs belong to `Policy.layouts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the user allows; each field is one setting of the WebUI."""

    enabled: bool = option(
        True, "Repair embeddings while the WebUI reads them", "nothing on disk changes; off: as without the extension"
    )
    opening: bool = option(
        True,
        "Open files that the WebUI does not open",
        ".pt of a newer torch, .pti, .pth, wrong endings, halves in two files",
    )
    layouts: bool = option(
        True,
        "Repair layouts",
        "unknown or swapped names of the halves, extra keys, vectors stored 1-D, 3-D, transposed or side by side",
    )
    rows: bool = option(True, "Repair uneven halves", "the shorter half is filled up with its last vector")
    names: bool = option(
        True,
        "Give names that prompts can call",
        "a second trigger where a name holds prompt syntax, and the name inside the file where it is no ordinary word",
    )
    refuse: bool = option(
        True,
        "Leave out files that would break pictures",
        "NaN, more vectors than a prompt takes; the console says why",
    )
    sd15: str = option(
        "convert",
        "SD1.5 embeddings while SDXL is loaded",
        "convert: make the missing half from the checkpoint's own words; L only: a comma in its place; skip: say why",
        choices=SD15_WAYS,
    )
    model: bool = option(
        True,
        "Check tokenizers and text encoders when a model is loaded",
        "repairs in memory what merging broke, lets checkpoints with added tokens load; silent when all is well",
    )
    log: str = option("all", "Lines in the console", "one per file and session, and a summary", choices=LOG_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loading:
    """How one embedding is to be loaded.

    Attributes:
        action: ``pass`` the file to the host's own function; ``register`` the embedding; ``complete`` it at its first
            use and register it; put it among the host's ``skip``-ped ones; ``refuse`` it.
        embedding: what to register, complete or list as skipped; None where there is none.
        names: further triggers for the same vectors.
        label: what the infotext says when it was used (``repaired``, ``converted``), empty for nothing.
        line: what to tell the user, empty for nothing.
        neutral: complete it with a comma instead of converting it.
        sound: a ``pass``-ed file is healthy; where the host cannot open it, its content can be registered as it is.
        foreign: a ``pass``-ed file is no embedding at all, such as a picture; that the host cannot read it is no news.
    """

    action: Action
    embedding: Embedding | None = None
    names: tuple[str, ...] = ()
    label: str = ""
    line: str = ""
    neutral: bool = False
    sound: bool = False
    foreign: bool = False


def on_load(parsed: Parsed, *, family: Family | None, policy: Policy, native: str = "") -> Loading:
    """Decide about one embedding.

    Args:
        parsed: what was read.
        family: the kind of model that is loaded; None where none is, then the kind that the embedding is made for.
        policy: what the user allows.
        native: what the host itself calls it; empty for a file, which it calls by its stem.
    """
    native = native or parsed.paths[0].stem
    if not policy.enabled or parsed.ignored:
        return Loading(action="pass", foreign=policy.enabled)
    made_for = parsed.embedding.family if parsed.embedding else None
    result = repair(parsed, family=family or made_for or SDXL)
    return _decide(parsed, result, policy, native)


def _decide(parsed: Parsed, result: RepairResult, policy: Policy, native: str) -> Loading:
    after = result.after
    if result.verdict == "reject":
        return _rejected(parsed, result, policy)
    assert after is not None
    if not _allowed(result, policy):
        return Loading(action="pass")
    if result.changed:
        after = replace(after, name=name_in_prompts(after.name, native))
    names = _further_names(after) if policy.names else ()
    incomplete = bool(result.target.keys & {CLIP_L.key, CLIP_G.key} - set(after.vectors))
    if result.target is SDXL and incomplete:
        return _incomplete(parsed, result, after, names, policy)
    if is_conversion(after, result.target):
        half = after.half((CLIP_L.key,))
        line = _line(parsed, "Made for SDXL, used with its clip_l half.", half, names)
        return Loading(action="register", embedding=half, names=names, label=HALVED, line=line)
    if not result.changed:
        return Loading(action="pass", embedding=after, names=_beside_native(after, names, native), sound=True)
    line = _line(parsed, " ".join(result.applied), after, names)
    return Loading(action="register", embedding=after, names=names, label="repaired", line=line)


def _rejected(parsed: Parsed, result: RepairResult, policy: Policy) -> Loading:
    errors = [f for f in result.findings if f.severity == "error"]
    line = _sentence(parsed, errors[0].message if errors else "it holds no embedding.")
    if result.before is not None and {f.code for f in errors} == {"wrong-family"}:
        listed = result.before if len(result.before.vectors) == 1 else None  # hosts have no form for other sets
        return Loading(action="skip", embedding=listed, line=line)
    return Loading(action="refuse", line=line) if policy.refuse else Loading(action="pass")


def _incomplete(
    parsed: Parsed, result: RepairResult, after: Embedding, names: tuple[str, ...], policy: Policy
) -> Loading:
    """One CLIP half for SDXL, which has two."""
    made_for = SD15 if after.family is SD15 else None
    what = "made for SD1.5" if made_for else f"only {' and '.join(after.vectors)} is in it"
    if policy.sd15 == "skip":
        line = _sentence(parsed, f"It is {what}; skipped, as the setting for SD1.5 embeddings says.")
        return Loading(action="skip", embedding=after, line=line)
    neutral = policy.sd15 == "L only"
    how = "its other half is a comma" if neutral else "its other half is made at first use"
    also = " ".join(("", *result.applied))
    label = "L only" if neutral and made_for else "converted"
    line = _line(parsed, f"{what[:1].upper()}{what[1:]}, {how}.{also}", after, names)
    return Loading(action="complete", embedding=after, names=names, label=label, line=line, neutral=neutral)


def _allowed(result: RepairResult, policy: Policy) -> bool:
    """Whether the user allows every repair that was made."""
    for finding in result.findings:
        if not finding.repaired:
            continue
        if not _allows(policy, finding):
            return False
    return True


def _allows(policy: Policy, finding: Finding) -> bool:
    if finding.code in OPENING:
        return policy.opening
    if finding.code in ROWS:
        return policy.rows
    return True if finding.code in NAMES else policy.layouts


def _further_names(embedding: Embedding) -> tuple[str, ...]:
    """Triggers beside the main one; none that prompts contain as plain words."""
    return tuple(n for n in dict.fromkeys(embedding.aliases) if n != embedding.name and not is_plain_text(n))


def _beside_native(embedding: Embedding, names: tuple[str, ...], native: str) -> tuple[str, ...]:
    """The names that the host does not give by itself."""
    own = () if is_plain_text(embedding.name) else (embedding.name,)
    return tuple(n for n in dict.fromkeys((*own, *names)) if n != native)


def name_in_prompts(name: str, native: str) -> str:
    """What a WebUI's prompts call it: a name from inside a file goes before its stem, unless it is plain words."""
    return native if is_plain_text(name) else name


def is_plain_text(name: str) -> bool:
    """Whether a name is made up of ordinary words only, so that prompts hold it without meaning an embedding."""
    return all(map(is_ordinary_word, name.split()))


def _line(parsed: Parsed, what: str, embedding: Embedding, names: Iterable[str]) -> str:
    triggers = " or ".join(map(repr, (embedding.name, *names)))
    return f"{parsed.paths[0].name}: {what} Trigger: {triggers}"


def _sentence(parsed: Parsed, message: str) -> str:
    file = parsed.paths[0].name
    return message if message.startswith(file) else f"{file}: {message}"


def neutral_half(embedding: Embedding, vocabulary: Vocabulary) -> Embedding:
    """Fill the missing CLIP half with the vector of the comma, which says next to nothing to the model."""
    missing = next((k for k in (CLIP_L.key, CLIP_G.key) if k not in embedding.vectors), None)
    if missing is None or missing not in vocabulary.tables:
        return embedding
    comma = vocabulary.tables[missing][vocabulary.tokenize(",")[0]].detach().float().cpu()
    rows = {**embedding.vectors, missing: comma.expand(embedding.num_vectors, -1).clone()}
    return embedding.with_vectors({k: rows[k] for k in (CLIP_L.key, CLIP_G.key)})


def family_of_width(width: int) -> Family | None:
    """The family that a host means by its expected width: 768, 1024, 1280, or 2048 for both halves of SDXL."""
    widths = {sum(e.width for e in family.encoders): family for family in reversed(list(FAMILIES.values()))}
    return widths.get(width)
