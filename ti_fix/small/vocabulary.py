"""The CLIP vocabulary of the small models: the real 49,408 byte-pair tokens, built without any hub."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers
from transformers import CLIPTokenizer

from ti_fix.tokenizer import published

VOCABULARY, BOS, EOS = 49408, 49406, 49407
END = "<|endoftext|>"
PAD = {"clip_l": EOS, "clip_g": 0}


@cache
def tokenizer(encoder: str) -> CLIPTokenizer:
    """transformers tokenizer of ``clip_l`` (pads with EOS) or ``clip_g`` (pads with id 0)."""
    merges, vocabulary = list(published().ranks), dict(published().ids)
    special = {"model_max_length": 77, "pad_token": END if PAD[encoder] == EOS else "!", "unk_token": END}
    if int(transformers.__version__.partition(".")[0]) >= 5:
        return CLIPTokenizer(vocab=vocabulary, merges=merges, **special)
    with TemporaryDirectory() as folder:  # older ones read files only
        vocab_file, merges_file = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocab_file.write_text(json.dumps(vocabulary), encoding="utf-8")
        merges_file.write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]), encoding="utf-8")
        return CLIPTokenizer(str(vocab_file), str(merges_file), **special)
