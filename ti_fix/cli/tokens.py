"""``ti-fix tokens``: what a prompt becomes, token for token."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ti_fix.cli.output import existing, print_object, show
from ti_fix.cli.settings import count

if TYPE_CHECKING:  # PyTorch takes seconds to import, and --help needs none of it
    from ti_fix.align.tokens import EncoderView, Token, TokenView
    from ti_fix.embedding import Embedding
    from ti_fix.text_model import TextModel

_EXAMPLE = """examples:
  ti-fix tokens "a photo of a cat, (best quality:1.2)"
  ti-fix tokens "a photo of my-toy" --model my_sdxl/ --embeddings embeddings/
  ti-fix tokens "1girl, solo" --json"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tokens",
        help="show what a prompt becomes: ids, words, chunks, places of embeddings",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", help="a prompt as it is typed into a WebUI")
    parser.add_argument(
        "--model", metavar="MODEL", help="whose tokenizers and extra rows (default: the published ones)"
    )
    parser.add_argument("--embeddings", nargs="+", default=[], metavar="PATH", help="files or folders of embeddings")
    parser.add_argument(
        "--for", dest="family", type=_family, choices=("sdxl", "sd15"), default="sdxl", help="without --model (sdxl)"
    )
    parser.add_argument("--steps", type=count, default=20, metavar="N", help="for [from:to:when] and [a|b] (20)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def _family(text: str) -> str:
    from ti_fix.embedding import family_name

    return family_name(text)


def run(arguments: argparse.Namespace) -> int:
    """Take the prompt apart and print it."""
    from ti_fix.align.checkpoint import read_checkpoint
    from ti_fix.align.rebind import published_model
    from ti_fix.align.tokens import view
    from ti_fix.embedding import FAMILIES

    if arguments.model:
        (path,) = existing([arguments.model])
        model = read_checkpoint(path)
    else:
        model = published_model(FAMILIES[arguments.family])
    embeddings = _embeddings(model, arguments.embeddings)
    found = view(model, arguments.prompt, embeddings, steps=arguments.steps)
    if arguments.json:
        print_object(found.as_dict())
    else:
        _print(found)
    return 0


def _embeddings(model: TextModel, paths: Sequence[str]) -> dict[str, Embedding]:
    """Trigger -> embedding, of the model's own extra rows and of files; aliases count as triggers."""
    from ti_fix.align import extra_embeddings
    from ti_fix.repair import scan

    found = list(extra_embeddings(model))
    judged = scan(existing(paths), family=model.family) if paths else []
    found += [each.result.after for each in judged if each.result.after]
    return {name: each for each in found for name in (each.name, *each.aliases)}


def _print(found: TokenView) -> None:
    if found.removed:
        show(f"Taken out or replaced before encoding: {', '.join(found.removed)}")
    for kind, arguments in found.networks:
        show(f"Taken out as a network: {kind} {arguments}")
    for text in found.texts:
        if len(found.texts) > 1:
            steps = f"step {text.first}" if text.first == text.last else f"steps {text.first} to {text.last}"
            show(f"part {text.branch + 1} (weight {text.weight:g}), {steps}: {text.text.strip()!r}")
        for encoder in text.encoders:
            _print_encoder(encoder)


def _print_encoder(encoder: EncoderView) -> None:
    total = len(encoder.chunks)
    show(f"{encoder.key}: {total} chunk{'s' * (total != 1)} of 77; the encoder gets no attention mask")
    for number, chunk in enumerate(encoder.chunks, start=1):
        show(f"  chunk {number}")
        for line in _lines(chunk):
            show(f"    {line}")
    for place in encoder.places():
        show(f"  {_placed(place, encoder)}")


def _placed(place: dict[str, Any], encoder: EncoderView) -> str:
    missing = f", {place['missing']} missing in {encoder.key} (it sees id 0 there)" if place["missing"] else ""
    return (
        f"{place['name']}: chunk {place['chunk'] + 1}, from position {place['position']}, "
        f"{place['vectors']} vectors{missing}"
    )


def _lines(chunk: Sequence[Token]) -> list[str]:
    """One line a token; the padding in one."""
    pads = [t for t in chunk if t.kind == "pad"]
    lines = [
        f"{position:2}  {token.id:5}  {token.text}" + (f"  x {token.weight:g}" if token.weight != 1 else "")
        for position, token in enumerate(chunk)
        if token.kind != "pad"
    ]
    if pads:
        lines.append(f"{len(chunk) - len(pads):2}  {pads[0].id:5}  {pads[0].text}  {len(pads)} times (padding)")
    return lines
