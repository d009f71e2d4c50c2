"""Every fixed text of the Train page."""

from __future__ import annotations

from types import MappingProxyType

from ti_fix.train import TrainConfig
from ti_fix.ui.forms import option_texts

KINDS = MappingProxyType({"thing": "A thing, person or animal", "style": "A style"})
"""What is learned: key and the words on the page."""

SECTIONS = MappingProxyType(
    {
        "Pictures": "folders resolution buckets flip alpha background masks",
        "Captions": "template shuffle_tags drop_tags",
        "Steps and rates": "vectors start steps batch_size accumulate learning_rate schedule warmup optimiser seed",
        "Checks, previews, saving": ("validate_every patience checkpoint_every preview_every preview_prompt overwrite"),
    }
)
"""Folds of the form: title and the settings in it; what is for experts has a fold of its own."""

PAGE = MappingProxyType(
    {
        "name": "Name",
        "name_hint": "the word for your prompts",
        "what": "What is it?",
        "what_hint": "cat, clay figure, ink drawing …",
        "kind": "It is",
        "add_pictures": "Pictures",
        "new_pictures": "Start a new set of pictures",
        "start": "Train",
        "check": "Check first",
        "pause": "Pause",
        "resume": "Resume",
        "save": "Save now",
        "stop": "Stop",
        "options": "Options",
        "picture": "picture",
        "pictures": "pictures",
        "more": "more are used, but not shown",
        "with_captions": "with a caption of their own",
        "no_pictures": "No pictures yet",
        "no_pictures_do": "Drop 3 to 30 pictures above. Captions are optional; write them under the pictures.",
        "caption_of": "Caption of",
        "caption_empty": "Caption (optional)",
        "remove": "Remove",
        "idle": "Nothing runs",
        "idle_do": "Give it a name, add pictures and press Train. What happens is shown here, also after a reload.",
        "fixed_loss": "Validation loss",
        "training_loss": "Training loss, on its own scale",
        "steps": "Steps",
        "lower": "Lower is better; the same pictures and noise every time, so that points can be compared.",
        "too_early": "The first point comes after the first steps.",
        "length": "Length of the vectors",
        "length_hint": "As a multiple of everyday words. From 3 on they may drown the rest of a prompt.",
        "words": "Nearest words",
        "words_hint": "Words of the model that the vectors are most like now.",
        "as_tokens": "A caption as the text encoders get it",
        "as_tokens_hint": "The vectors that will be trained stand where the name stood, in each encoder.",
        "previews": "Previews",
        "noticed": "What was noticed",
        "set": "Set",
        "to": "to",
        "best": "best",
        "step": "step",
        "some_steps": "steps",
        "use_it": "Write this in a prompt",
        "copy": "Copy",
        "add": "Add to txt2img",
        "evaluate": "Evaluate it",
        "history": "Earlier runs",
        "no_history": "No runs yet",
        "no_history_do": "Each run is listed here with its settings, its curve and the steps that were kept.",
        "again": "Use these settings",
        "go_on": "Resume",
        "use_step": "Use step",
        "use_best": "Use the best",
        "download": "Download it and go on",
        "shaded": "Shaded edges are cut off at this resolution.",
        "masked": "Red places count less in the loss, by the picture's mask or transparency.",
        "caption_by": "Captions for those without:",
        "sentences": "as a sentence",
        "tags": "as tags",
        "rate": "Rate",
    }
)

TEXTS = MappingProxyType(
    {
        **PAGE,
        **{f"kind.{key}": text for key, text in KINDS.items()},
        **{f"section.{title}": title for title in SECTIONS},
        **option_texts(TrainConfig),
    }
)
