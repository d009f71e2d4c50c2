"""Every fixed text of the page, once; `localizations/zh_CN.json` has each of them (a test counts).

The hosts translate a text when it stands alone in its element, so numbers and names are put into elements of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

VERDICTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "load": ("Ready", "Loads and works as it is."),
        "repair": ("Repaired", "Broken on disk, mended each time it is loaded. It works."),
        "warn": ("Look here", "Works, but something about it should be known."),
        "convert": ("Converted", "Made for another kind of model; it is converted when it is used."),
        "reject": ("Unusable", "Cannot be used; the reason says what to do."),
    }
)
"""Verdict -> word on the badge, and what it means."""

ALL = "All"
LAST_PICTURE = "In the last picture"

TABLE = MappingProxyType(
    {
        "name": "Name",
        "made_for": "Made for",
        "vectors": "Vectors",
        "verdict": "State",
        "reason": "Why",
    }
)

TEXTS = MappingProxyType(
    {
        "tab": "TI Fix",
        "files": "Files",
        "search": "Search",
        "search_hint": "name, folder, layout, SDXL …",
        "refresh": "Refresh",
        "show": "Show",
        "used": "used",
        "previous": "Previous",
        "next": "Next",
        "of": "of",
        "nothing_chosen": "Choose an embedding to see what is in it.",
        "no_files": "No embeddings yet",
        "no_files_do": "Put embedding files into the folder below, then press Refresh.",
        "no_match": "Nothing fits",
        "no_match_do": "No embedding fits this search and filter. Clear the search or choose All.",
        "not_read": "The folder has not been read yet.",
        "in_prompt": "Write this in the prompt",
        "copy": "Copy",
        "add": "Add to txt2img",
        "about": "What it is",
        "made_for": "Made for",
        "vectors": "Vectors",
        "layout": "Stored as",
        "file": "File",
        "size": "Size",
        "also": "Also called",
        "unknown": "unknown",
        "noticed": "What was noticed",
        "nothing_noticed": "Nothing: a healthy file.",
        "done_about_it": "Done about it",
        "lengths": "Length of each vector",
        "lengths_hint": "The line marks the length of everyday words in this encoder. Other lengths are no fault.",
        "lengths_hint_plain": "Longer bars act more strongly. No length is a fault in itself.",
        "repair": "Repair on disk",
        "split": "Split into parts",
        "extract": "Take the embeddings out",
        "undo": "Undo the last repair",
        "export": "Export",
        "export_for": "Export for",
        "exported": "Exported files",
        "batch": "Many at once",
        "batch_hint": (
            "Repairs every embedding that the list shows and that needs it. "
            "Originals are kept in ti_fix_backup inside the embeddings folder."
        ),
        "repair_shown": "Repair all shown",
        "stop": "Stop",
        "lora": "From a LoRA",
        "lora_hint": "Some LoRAs bring embeddings along. Look for them, choose one, and take them out as files.",
        "lora_find": "Look through my LoRAs",
        "lora_choice": "LoRA with embeddings",
        "lora_take": "Take them out",
        "left": "left",
        "model": "Model",
        "check_all": "Check thoroughly",
        "checking": "Checking the model",
        "not_looked": "The model has not been looked at yet.",
        "no_model": "No model is loaded",
        "no_model_do": "Choose a checkpoint or make a picture, then press Refresh.",
        "check": "Check",
        "encoder": "Encoder",
        "found": "Found",
        "expected": "Expected",
        "mended": "Repaired in memory when the model was loaded:",
        "at_load": "Checked while loading in",
        "environment": "What it runs on",
        "ways": "Ways to put an embedding in",
        "ways_hint": (
            "Measured here, with the words of the model itself as an embedding. "
            "Fidelity: how close the encoder's output comes to what was meant, 1 is exact; behind the stroke, pooled."
        ),
        "ways_none": "Press Check thoroughly to measure them.",
        "way": "Way",
        "prepare": "Prepare",
        "per_prompt": "Per prompt",
        "fidelity": "Fidelity",
        "reversible": "Reversible",
        "yes": "yes",
        "no": "no",
        "tokens": "What a prompt becomes",
        "tokens_hint": "Chunks, ids and places of embeddings as each text encoder gets them.",
        "prompt": "Prompt",
        "prompt_hint": "a photo of my-toy, (best quality:1.2) BREAK [red:blue:0.5] sky",
        "steps": "Steps",
        "take_apart": "Take apart",
        "cleaned": "Taken out or replaced:",
        "networks": "Networks, taken out:",
        "part": "Part",
        "chunk": "Chunk",
        "position": "position",
        "missing": "missing",
        "padding": "padding",
    }
)

LIGHTS = MappingProxyType(
    {
        "green": "Tokenizers and text encoders are as they should be.",
        "yellow": "Works, but something about it should be known.",
        "red": "Something is wrong.",
    }
)

STATES = MappingProxyType(
    {
        "ok": "As it should be",
        "note": "Good to know",
        "warning": "Should be known",
        "error": "Wrong",
        "mended": "Repaired",
    }
)
"""Severity of a check -> what its lamp means."""

ENVIRONMENT = MappingProxyType(
    {
        "python": "Python",
        "torch": "PyTorch",
        "gpu": "GPU",
        "gpu_memory": "Free GPU memory",
        "memory": "Free memory",
        "device": "Device",
        "encoder_dtype": "Text encoders",
        "unet_dtype": "UNet",
        "attention": "Attention",
    }
)

REASON_SEVERITY = ("error", "warning", "note")


def all_words() -> frozenset[str]:
    """Every text that a translation needs."""
    verdicts = (text for pair in VERDICTS.values() for text in pair)
    tables = (TABLE, TEXTS, LIGHTS, STATES, ENVIRONMENT)
    return frozenset({*verdicts, ALL, LAST_PICTURE, *(text for table in tables for text in table.values())})
