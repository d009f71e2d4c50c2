"""Which trainer made a file, where that explains a difference between its previews and the WebUI.

Several trainers add the placeholder to the tokenizer. Its id is then larger than that of the end token, and
`transformers` reads SDXL's pooled vector at the placeholder instead of at the end token
(huggingface/transformers#24650, huggingface/diffusers#10754). The WebUI reads it at the end token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ti_fix.embedding import CLIP_G, Finding

_BY_METADATA = {"ot_": "OneTrainer", "ai-toolkit": "ai-toolkit", "invoke": "invoke-training"}
_TOOL_KEYS = ("software", "modelspec.author", "modelspec.description")
_BY_LAYOUT = {
    "token dict pair": "diffusers' SDXL script",
    "text_encoders_0/text_encoders_1": "a pivotal-tuning trainer of the diffusers family",
}


def trainer_of(layout: str, metadata: Mapping[str, str]) -> str | None:
    """The trainer with that fault that a file seems to come from, None for others."""
    told = " ".join((*metadata, *(metadata.get(k, "")[:200] for k in _TOOL_KEYS))).lower()
    for mark, trainer in _BY_METADATA.items():
        if mark in told:
            return trainer
    return _BY_LAYOUT.get(layout)


def find_pooled_fault(keys: Iterable[str], layout: str, metadata: Mapping[str, str]) -> Finding | None:
    """A note for SDXL files of such a trainer."""
    trainer = trainer_of(layout, metadata) if CLIP_G.key in set(keys) else None
    if trainer is None:
        return None
    return Finding(
        code="pooled-at-placeholder",
        severity="note",
        message=f"It seems to come from {trainer}, which reads the summary of the prompt (the pooled vector) in "
        "another place than WebUIs do; pictures may differ a little from the trainer's previews.",
    )
