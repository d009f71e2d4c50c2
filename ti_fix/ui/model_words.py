"""The texts of the Model page."""

from __future__ import annotations

from types import MappingProxyType

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

TEXTS = MappingProxyType(
    {
        "refresh": "Refresh",
        "stop": "Stop",
        "check_all": "Check thoroughly",
        "checking": "Checking the model",
        "not_looked": "The model has not been looked at yet.",
        "loading": "The model is being loaded; it will be looked at by itself.",
        "no_model": "No model is loaded",
        "no_model_do": "Choose a checkpoint and make a picture, then press Refresh: Forge loads a model only then.",
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
            "Fidelity: how close the encoder's output comes to what was meant, 1 is exact; behind the stroke, pooled. "
            "Per prompt: the time that it adds; below 0 it is too little to be measured here."
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
        "steps": "steps",
        "steps_label": "Steps of the picture, for prompt editing",
        "take_apart": "Take apart",
        "cleaned": "Taken out or replaced:",
        "networks": "Networks, taken out:",
        "part": "Part",
        "chunk": "Chunk",
        "position": "position",
        "missing": "missing",
        "padding": "padding",
        **{f"light {key}": text for key, text in LIGHTS.items()},
        **{f"state {key}": text for key, text in STATES.items()},
        **{f"environment {key}": text for key, text in ENVIRONMENT.items()},
    }
)
