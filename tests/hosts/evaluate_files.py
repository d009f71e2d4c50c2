"""What the check of evaluation and maps works on: the small real model, its judge, an embedding, pictures."""

from __future__ import annotations

import json
import random
from pathlib import Path

from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.embedding import Embedding
from ti_fix.small import clip, load, scenes
from ti_fix.small.expand import unfold
from ti_fix.small.write_checkpoint import write_demo_model

MODEL = "small_sdxl.safetensors"
NAME, WORDS = "ckredcircle", "red circle"
TEXT = "a red circle on a white background"


def write_model(layout: str, folder: Path) -> None:
    """The small SDXL at the real widths."""
    write_demo_model(load("sdxl"), layout, folder / MODEL)


def write_judge(folder: Path) -> Path:
    """The small CLIP, as somebody's own file in open_clip's layout."""
    folder.mkdir(parents=True)
    state = {key: value.contiguous() for key, value in clip.open_clip_state().items()}
    save_file(state, folder / "judge.safetensors")
    about = {"model_cfg": {**clip.CONFIG, "resampling": "bilinear"}}
    (folder / "open_clip_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder / "judge.safetensors"


def write_embedding(path: Path, words: str) -> None:
    """The token rows of words, at the real widths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = tokenizer.encode(words)
    rows: dict[str, Tensor] = {
        key: encoder.get_input_embeddings().weight.detach()[ids].clone()
        for key, encoder in load("sdxl").text_encoders.items()
    }
    wide = unfold(Embedding(name=path.stem, vectors=rows)).vectors
    save_file({key: block.contiguous() for key, block in wide.items()}, path)


def write_pictures(folder: Path, count: int = 8) -> list[Path]:
    """Red circles on white with masks and captions; the last is a blue star, with a circle's caption."""
    folder.mkdir(parents=True)
    rng, paths = random.Random(7), []
    for number in range(count):
        odd = number == count - 1
        thing = scenes.Thing(
            shape="star" if odd else "circle",
            paint=scenes.colour_paint("blue" if odd else "red", rng),
            cx=rng.uniform(52, 76),
            cy=rng.uniform(52, 76),
            radius=rng.uniform(26, 36),
        )
        scene = scenes.Scene(things=(thing,), background=scenes.background_paint("white", rng))
        paths.append(folder / f"p{number}.png")
        Image.fromarray(scenes.render(scene)).save(paths[-1])
        Image.fromarray(scenes.mask(thing, 1).astype("uint8") * 255).save(folder / f"p{number}-mask.png")
        (folder / f"p{number}.txt").write_text(TEXT, encoding="utf-8")
    return paths
