"""The texts of the Evaluate page."""

from __future__ import annotations

from types import MappingProxyType

from ti_fix.evaluate import EvalConfig
from ti_fix.heatmap import MapSettings
from ti_fix.ui.forms import option_texts

LABELS = MappingProxyType(
    {
        "intro": "Makes the same pictures with the embedding and without it, scores them, and says where it helps.",
        "embedding": "Embedding",
        "prompts": "Prompts",
        "prompts_hint": "One a line, with [name] where the embedding comes.",
        "references": "Pictures of what it should show",
        "references_hint": "With NAME-mask.png for each (white where the subject is), the subject alone is scored too.",
        "against": "Compare also with",
        "as_stored": "Compare also with the file as stored, not repaired",
        "word_maps": "Attention maps of its word",
        "run": "Steps of a training run",
        "judge": "Judge",
        "judge_hint": (
            "Weights of a CLIP in a file, or open_clip's name such as ViT-B-32/laion2b_s34b_b79k. "
            "Left empty: the one that Interrogate has fetched before."
        ),
        "fetch": "Yes, fetch the named judge if it is not here (size, licence and source are told first)",
        "dino": "DINO",
        "dino_hint": "Weights of DINO or DINOv2 in a file, for a second opinion on likeness. May stay empty.",
        "start": "Evaluate",
        "getting_ready": "Getting the judge and the model ready",
        "making": "Making pictures",
        "download": "Report to keep",
        "none": "Nothing to evaluate yet",
        "none_do": "Put embedding files into the embeddings folder, or train one; then open this page again.",
        "sent": "Sent from other pages",
        "sent_pictures": "Pictures to compare with:",
        "sent_settings": "Prompt and settings are those of the picture. Look them over, then press Evaluate.",
        "sent_no_embedding": (
            "Prompt and settings are those of the picture, but it calls no embedding of your folders. Choose one, and "
            "write [name] where it comes in the prompt."
        ),
        "dataset": "Training pictures",
        "dataset_hint": (
            "Finds captions that do not fit, pictures that do not belong, and copies, before you train. "
            "Without files, the pictures of the Train page are looked through."
        ),
        "dataset_files": "Pictures, and text files with their captions",
        "look": "Look through",
        "maps": "Attention maps",
        "maps_words": "Words to follow",
        "maps_words_hint": "Words of the prompt and embeddings, with commas. Left empty: all that mean something.",
        "maps_on": "Make maps",
        "maps_groups": "Also for groups (colour, object, scene …)",
    }
)
TEXTS = MappingProxyType({**LABELS, **option_texts(EvalConfig, MapSettings)})
