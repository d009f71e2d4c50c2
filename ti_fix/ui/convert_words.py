"""Every fixed text of the Convert page, once; found by `pages.page_texts`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ti_fix.convert import ConvertConfig
from ti_fix.ui.forms import option_texts

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        **option_texts(ConvertConfig),
        "about": (
            "SD1.5 embeddings get the second half that SDXL needs, made from the words of the loaded model; SDXL "
            "embeddings give their first half to SD1.5. The page converts for the model that is loaded now. Originals "
            "stay as they are."
        ),
        "files": "Embeddings to convert",
        "everything": "All in the list",
        "method": "Method",
        "method_hint": (
            "auto takes the first that holds for each vector: a word, a sum of words, the map between the encoders."
        ),
        "draw": "Test pictures",
        "without": "name as plain text",
        "with": "with the conversion",
        "look": "Look first",
        "write": "Convert and write",
        "stop": "Stop",
        "refresh": "Refresh",
        "nothing": "Nothing to convert",
        "nothing_do": (
            "No embedding in the folders is made for the other kind of model. Load an SDXL model to convert SD1.5 "
            "files, or an SD1.5 model to convert SDXL files."
        ),
        "no_result": "Choose embeddings and press Look first, to see what would come out.",
        "vector": "Vector",
        "nearest": "Nearest words",
        "nearest_l": "in CLIP-L",
        "nearest_g": "in bigG",
        "how": "How",
        "likeness": "Expected likeness",
        "likeness_hint": (
            "How like the result is to what the second encoder would really hold, from words whose both halves are "
            "known: 1 is exact, 0 is chance. Four of five lie inside the thin line."
        ),
        "length": "Length",
        "written": "Written to",
        "in_prompt": "Write this in the prompt",
        "not_written": "not written yet",
        "vocabulary": "word",
        "sparse": "sum of words",
        "local": "map and words around",
        "linear": "map",
        "sparse+linear": "words and map",
        "kept": "kept as it is",
        "match": "matched outputs",
    }
)
