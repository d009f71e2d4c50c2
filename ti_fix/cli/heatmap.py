"""``ti-fix heatmap``: a picture, and where in it each word of its prompt acted."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ti_fix.cli.output import print_object, show
from ti_fix.cli.settings import add_settings, count, given
from ti_fix.cli.sides import usable
from ti_fix.cli.standalone import add_model_arguments, open_host, widths_of
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.heatmap import MapSettings, Recorder, Wanted, WordMaps, facts_of, grouped, overlay, places_of, sheet
from ti_fix.options import validate
from ti_fix.phrases import content_words, lexicon, phrases
from ti_fix.protocols import ImageRequest, Sizes

_EXAMPLE = """examples:
  ti-fix heatmap "a mycat in red boots" --words mycat,boots --embeddings mycat.safetensors --model M --out maps
  ti-fix heatmap "a red circle on a white background" --model small:sdxl --out maps"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "heatmap",
        help="where in a picture each word acted",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt")
    add_model_arguments(parser, default="small:sdxl")
    parser.add_argument("--words", default="", metavar="A,B", help="words to follow (default: all that mean something)")
    parser.add_argument("--embeddings", nargs="+", default=[], metavar="FILE", help="embeddings that the prompt calls")
    parser.add_argument("--negative-prompt", default="", metavar="P")
    for name in ("width", "height"):
        parser.add_argument(f"--{name}", type=count, help="in pixels (default: what the model is made for)")
    for name, kind, default in (("steps", count, 20), ("seed", int, 0), ("pictures", count, 1)):
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"(default: {default})")
    parser.add_argument("--cfg-scale", type=float, default=7.0, help="(default: 7)")
    parser.add_argument("--groups", action="store_true", help="also a map for colour, object, scene, style, action")
    parser.add_argument("--own-groups", nargs="+", default=[], metavar="G=A,B", help="words of your own for a group")
    parser.add_argument("--json", action="store_true", help="print the numbers of the maps as JSON")
    parser.add_argument("--out", metavar="F", help="folder for the pictures")
    add_settings(parser.add_argument_group("settings"), MapSettings)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the pictures, then their maps."""
    settings = MapSettings(**given(arguments, MapSettings))
    validate(settings)
    host = open_host(arguments)
    model, fit = host.model(), widths_of(arguments.model).fit
    arguments.width = arguments.width or model.picture_size
    arguments.height = arguments.height or model.picture_size
    embeddings = tuple(usable(path, model.family) for path in arguments.embeddings)
    requests = [_request(arguments, embeddings, arguments.seed + number) for number in range(arguments.pictures)]
    rows = {e.name: e.num_vectors for e in embeddings}
    words = [word.strip() for word in arguments.words.split(",") if word.strip()]
    words = words or [*rows, *(w for w in content_words(arguments.prompt) if w not in {r.lower() for r in rows})]
    if not words:
        raise WrongUse("no word of the prompt means something by itself; name those to follow with --words.")
    places = places_of(arguments.prompt, words, rows)
    context = context_of(model, requests[0], {e.name: e.vectors for e in map(fit, embeddings)})
    split = model.vocabulary().tables["clip_l"].shape[1]
    with Recorder(model.unet, settings, steps=arguments.steps, split=split) as recorder:
        recorder.expect([Wanted(picture=n, context=context, places=places) for n in range(len(requests))])
        pictures = host.generate_many(requests)
    maps = recorder.maps()
    told = [_told(arguments, maps[n], picture, words) for n, picture in enumerate(pictures)]
    if arguments.json:
        print_object(told)
    return 0


def context_of(model: Any, request: ImageRequest, vectors: Any) -> torch.Tensor:
    """The conditioning of a request's prompt, (tokens, width), as its picture is made from it."""
    size = request.height, request.width
    with torch.no_grad():
        found = model.encode_prompts([request.prompt], vectors, [Sizes(original=size, target=size)])
    context: torch.Tensor = found.context[0]
    return context


def _request(arguments: argparse.Namespace, embeddings: Sequence[Any], seed: int) -> ImageRequest:
    return ImageRequest(
        prompt=arguments.prompt,
        negative_prompt=arguments.negative_prompt,
        width=arguments.width,
        height=arguments.height,
        steps=arguments.steps,
        cfg_scale=arguments.cfg_scale,
        seed=seed,
        embeddings=tuple(embeddings),
    )


def _told(arguments: argparse.Namespace, maps: WordMaps, picture: Any, words: Sequence[str]) -> dict[str, Any]:
    """Write and show one picture's maps."""
    facts = [asdict(each) for each in facts_of(maps)]
    by_group = grouped(maps, groups_of(arguments.prompt, arguments.own_groups, words)) if arguments.groups else None
    told = {"picture": maps.picture, "layers": maps.layers, "steps": maps.steps, "words": facts}
    if by_group is not None:
        told["groups"] = [asdict(each) for each in facts_of(by_group)]
    if arguments.out:
        told["files"] = _written(Path(arguments.out), maps, by_group, picture)
    if not arguments.json:
        for each in facts:
            show(
                f"{each['word']:20} mass {each['mass']:.4f}  of all words {each['among_words']:.2f}  "
                f"spread {each['entropy']:.3f}  peak {each['x']:.2f}, {each['y']:.2f}"
            )
    return told


def groups_of(prompt: str, own: Sequence[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Group -> those of the words that belong to it in this prompt."""
    found: dict[str, list[str]] = {}
    known = {word.lower(): word for word in words}
    for each in phrases(prompt, lexicon(own)):
        word = known.get(each.text.lower())
        if word is not None and word not in found.setdefault(each.group, []):
            found[each.group].append(word)
    return found


def _stem(word: str) -> str:
    return re.sub(r"[^\w-]+", "_", word)[:40]


def _written(folder: Path, maps: WordMaps, by_group: WordMaps | None, picture: Any) -> list[str]:
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        named = [(f"{maps.picture:02}", picture), (f"{maps.picture:02}-sheet", sheet(picture, maps))]
        for found in (maps, *((by_group,) if by_group else ())):
            named += [
                (f"{maps.picture:02}-{number}-{_stem(word)}", overlay(picture, map_))
                for number, (word, map_) in enumerate(zip(found.words, found.maps, strict=True))
            ]
        for name, image in named:
            image.save(folder / f"{name}.png")
            files.append(str(folder / f"{name}.png"))
    except OSError as error:
        raise TiFixError(f"{folder} cannot be written ({error.strerror}); give another folder with --out.") from error
    return files
