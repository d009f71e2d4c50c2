"""Begin a build from the shipped packs: ``python -m ti_fix.small.build --work DIR --from-packs``.

Writes checkpoints of what is packed, so that a build goes on from the project itself when its own folder is gone.
Only optimiser states are lost; towers and autoencoder count as finished, diffusion models train on.
"""

from __future__ import annotations

from pathlib import Path

from ti_fix.small.packs import FOLDER, part, read_pack, token_rows
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import save_checkpoint
from ti_fix.small.training.diffusion import RECIPES, Model
from ti_fix.small.training.encoders import TOWER_OF

TABLE = "text_model.embeddings.token_embedding.weight"


def unpack(work: Path) -> None:
    """Write the packed towers, autoencoder and SDXL base as checkpoints; existing checkpoints stay."""
    done = work / "done"
    done.mkdir(parents=True, exist_ok=True)
    tensors, about = read_pack("sdxl")
    for encoder, name in TOWER_OF.items():
        path = work / f"tower_{name}.ckpt"
        if not path.exists():
            known = token_rows(encoder)
            text = part(tensors, encoder) | {TABLE: known.rows.float()}
            counts = known.pictures.float()
            save_checkpoint(path, {"text": text, "used": known.ids, "picture_count": counts, "final": True})
        (done / f"tower-{name}").touch()
    (done / "pictures").touch()  # only the towers need them
    if not (work / "vae.ckpt").exists():
        save_checkpoint(work / "vae.ckpt", {"vae": part(read_pack("vae")[0], "vae")})
    (done / "vae").touch()
    path = work / "model_sdxl.ckpt"
    if not path.exists():
        model = Model(RECIPES["sdxl"].family, work)
        model.unet.load_state_dict(part(tensors, "unet"))
        state = {"model": model.state_dict(), "average_names": [], "average": []}
        save_checkpoint(path, state | {"step": about["steps"], "spent": float(about["cpu_seconds"])})
    report("unpacked", FOLDER, "to", work)
