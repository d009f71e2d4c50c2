"""The CLIP vocabulary of the small models: the real 49,408 byte-pair tokens, built without any hub.

The merges are read from ``bpe_simple_vocab_16e6.txt.gz`` (OpenAI CLIP, MIT; shipped inside open_clip_torch, whose
copy the project carries as ``ti_fix/data/bpe_simple_vocab_16e6.txt.gz``).
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers
from transformers import CLIPTokenizer

VOCABULARY, BOS, EOS = 49408, 49406, 49407
END = "<|endoftext|>"
PAD = {"clip_l": EOS, "clip_g": 0}
BPE_FILE = Path(__file__).parents[1] / "data" / "bpe_simple_vocab_16e6.txt.gz"


def byte_symbols() -> list[str]:
    """The 256 printable stand-ins for bytes, in vocabulary order (OpenAI CLIP, simple_tokenizer)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(b) for b in printable]
    return symbols + [chr(256 + n) for n in range(256 - len(printable))]


@cache
def merges_and_vocabulary() -> tuple[tuple[tuple[str, str], ...], dict[str, int]]:
    """Merge list in order of priority, and token -> id for all 49,408 tokens."""
    lines = gzip.decompress(BPE_FILE.read_bytes()).decode("utf-8").split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = tuple((a, b) for a, b in (line.split() for line in lines))
    symbols = byte_symbols()
    tokens = [*symbols, *(s + "</w>" for s in symbols), *(a + b for a, b in merges), "<|startoftext|>", END]
    return merges, {t: i for i, t in enumerate(tokens)}


@cache
def tokenizer(encoder: str) -> CLIPTokenizer:
    """transformers tokenizer of ``clip_l`` (pads with EOS) or ``clip_g`` (pads with id 0)."""
    merges, vocabulary = merges_and_vocabulary()
    special = {"model_max_length": 77, "pad_token": END if PAD[encoder] == EOS else "!", "unk_token": END}
    if int(transformers.__version__.partition(".")[0]) >= 5:
        return CLIPTokenizer(vocab=dict(vocabulary), merges=list(merges), **special)
    with TemporaryDirectory() as folder:  # older ones read files only
        vocab_file, merges_file = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocab_file.write_text(json.dumps(vocabulary), encoding="utf-8")
        merges_file.write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]), encoding="utf-8")
        return CLIPTokenizer(str(vocab_file), str(merges_file), **special)
