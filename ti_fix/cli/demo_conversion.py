"""The demo's conversion: an SD1.5 embedding gets the half that SDXL asks for."""

from __future__ import annotations

from pathlib import Path

import torch

from ti_fix import tokenizer
from ti_fix.cli.demo_report import Section, strip
from ti_fix.cli.demo_training import pictures, small_host
from ti_fix.convert import Converter
from ti_fix.embedding import CLIP_L, Embedding, Vocabulary
from ti_fix.formats.write import to_bytes, write_bytes
from ti_fix.small import load
from ti_fix.small.expand import unfold

NAME = "zqx-old"
WORDS = ("blue", "star")
_SCENES = ("a {} on a white background", "a small {}", "a {} on a black background", "a large {}")


def run_conversion(root: Path) -> Section:
    """Convert an SD1.5 embedding that says "blue star" and compare with the words themselves."""
    host, small = small_host(), load("sdxl")
    tables = host.model().vocabulary().tables
    trained = small.trained_rows["clip_l"] & small.trained_rows["clip_g"]
    ids = [tokenizer.encode(word)[0] for word in WORDS]
    old = Embedding(name=NAME, vectors={CLIP_L.key: tables[CLIP_L.key][ids].clone()})
    converter = Converter(Vocabulary(tables=tables, tokenize=tokenizer.encode, trained=trained))
    done = converter.to_sdxl(old)
    path = write_bytes(root / "converted" / f"{NAME}.safetensors", to_bytes(unfold(done.embedding)), overwrite=True)
    rows: list[tuple[str, ...]] = [("vector", "says", "way", "likeness expected", "likeness measured", "near words")]
    for number, (row, word, vector) in enumerate(zip(done.rows, WORDS, done.embedding.vectors["clip_g"], strict=True)):
        real = torch.nn.functional.cosine_similarity(vector, tables["clip_g"][ids[number]], dim=0)
        told = row.confidence
        near = ", ".join(tokenizer.decode([each]) for each in row.words[:3])
        rows.append(
            (f"{number + 1}", word, row.method, f"{told.expected:.2f} ({told.low:.2f} to {told.high:.2f})",
             f"{float(real):.2f}", near)
        )  # fmt: skip
    half = Embedding(name=NAME, vectors=old.vectors)
    drawn = {
        "left": ("the SD1.5 file as it is: half of SDXL sees nothing", NAME, half),
        "converted": ("converted", NAME, done.embedding),
        "words": (f"the words {' '.join(WORDS)!r} themselves", " ".join(WORDS), None),
    }
    shown = {
        strip(pictures(host, [s.format(word) for s in _SCENES], given), root / "pictures" / f"{name}.png"): what
        for name, (what, word, given) in drawn.items()
    }
    return Section(
        title="Convert: an SD1.5 embedding for SDXL",
        lines=[f"{done.message} Written to {path}."],
        table=rows,
        pictures=shown,
    )
