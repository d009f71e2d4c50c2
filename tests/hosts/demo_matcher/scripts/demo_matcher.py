"""An extension for Forge, for tests only: lets it load the demo models that stand in its checkpoint folders.

Forge knows architectures by the published sizes. A demo model brings its own sizes in the folder of the same name
beside it; this adds each as one more architecture that Forge may recognise, and changes nothing that it knows.
"""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_guess import model_list
from modules import sd_models

_SIZES = ("model_channels", "transformer_depth")


def _demo_models() -> list[Path]:
    """Folders of component configurations beside checkpoints of the same name."""
    found = (Path(name).with_suffix("") for name in map(str, Path(sd_models.model_path).rglob("*.safetensors")))
    return sorted(folder for folder in found if (folder / "model_index.json").is_file())


def _architecture(folder: Path) -> type:
    unet = json.loads((folder / "unet" / "config.json").read_text(encoding="utf-8"))
    known = model_list.SDXL if unet["addition_embed_type"] else model_list.SD15
    sizes = {key: value for key, value in known.unet_config.items() if key not in _SIZES}
    about = {
        "unet_config": {**sizes, "model_channels": unet["block_out_channels"][0]},
        "huggingface_repo": str(folder),
    }
    return type(f"Demo{known.__name__}", (known,), about)


if not any(each.__name__.startswith("Demo") for each in model_list.models):
    model_list.models.extend(_architecture(folder) for folder in _demo_models())
