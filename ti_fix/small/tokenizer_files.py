"""CLIP's tokenizer as the files that transformers reads, of any age."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ti_fix.tokenizer import BOS, EOS, published


def write_tokenizer(tokenizer: Any, folder: Path) -> list[Path]:
    """Write ``vocab.json``, ``merges.txt`` and the two settings files.

    Args:
        tokenizer: transformers' ``CLIPTokenizer``; its padding token is kept.
        folder: where; made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": BOS, "eos_token": EOS, "unk_token": EOS, "pad_token": tokenizer.pad_token}
    settings = {**special, "model_max_length": 77, "do_lower_case": True, "tokenizer_class": "CLIPTokenizer"}
    contents = {
        "vocab.json": json.dumps(tokenizer.get_vocab(), ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *map(" ".join, published().ranks), ""]),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "special_tokens_map.json": json.dumps(special, indent=2),
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in contents]
