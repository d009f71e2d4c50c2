"""Every fixed text of the page, once; `localizations/zh_CN.json` has each of them (a test counts).

The hosts translate a text when it stands alone in its element, so numbers and names are put into elements of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ti_fix.options import options
from ti_fix.repair.on_load import Policy
from ti_fix.ui.pages import page_texts

VERDICTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "load": ("Ready", "Loads and works as it is."),
        "repair": ("Repaired", "Broken on disk, mended each time it is loaded. It works."),
        "warn": ("Look here", "Works, but something about it should be known."),
        "convert": ("Converted", "Made for another kind of model; it is converted when it is used."),
        "reject": ("Unusable", "Cannot be used; below stands why and what to do."),
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
        "train": "Train",
        "convert": "Convert",
        "evaluate": "Evaluate",
        "model": "Model",
        "expert": "For experts",
        "source": "Source code",
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
        "states_for": "States are for",
        "not_loaded": "(no model is loaded yet)",
        "not_read": "The folder has not been read yet.",
        "in_prompt": "Write this in the prompt",
        "copy": "Copy",
        "add": "Add to txt2img",
        "one_vector": "vector",
        "some_vectors": "vectors",
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
        "stopping": "Stopping after what it is at …",
        "to_convert": "Convert it",
        "to_evaluate": "Evaluate it",
        "send_train": "Train on it",
        "send_references": "Evaluate against it",
        "send_settings": "Evaluate its embedding",
        "send_open": "Open in TI Fix",
    }
)

REASON_SEVERITY = ("error", "warning", "note")


def all_words() -> frozenset[str]:
    """Every text that a translation needs: pages, their own tables, and the settings as the WebUI writes them."""
    verdicts = (text for pair in VERDICTS.values() for text in pair)
    own = (text for table in page_texts() for text in table.values())
    settings = (text for _, about in options(Policy) for text in (about.label, f"({about.help})"))
    return frozenset({*verdicts, ALL, LAST_PICTURE, *TABLE.values(), *TEXTS.values(), *own, *settings})
