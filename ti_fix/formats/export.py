"""The forms that other programs read, each an entry of `FORMS`: for which models, which files, how to load them.

Sources: AUTOMATIC1111 stable-diffusion-webui 1.10, ``modules/textual_inversion/textual_inversion.py`` and
``modules/safe.py``; diffusers, ``loaders/textual_inversion.py`` and ``examples/textual_inversion``; ComfyUI,
``comfy/sd1_clip.py``; InvokeAI, ``backend/textual_inversion.py`` and ``backend/model_manager/configs``.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ti_fix.embedding import CLIP_G, FAMILIES, SD2, SD15, SDXL, SDXL_REFINER, Embedding, Family
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.metadata import travels
from ti_fix.formats.write import file_name, pack, to_bytes, write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way of storing an embedding that a program reads.

    Attributes:
        title: the program.
        families: the models for which it takes embeddings.
        files: embedding and family -> relative file name -> content.
        usage: where the files go and how a prompt calls them; ``{name}`` is the file's stem, ``{token}`` the
            placeholder.
        spaces: whether the name may hold spaces and prompt syntax there.
    """

    title: str
    families: tuple[Family, ...]
    files: Callable[[Embedding, Family, str], Mapping[str, bytes]]
    usage: str
    spaces: bool = True


def export(embedding: Embedding, folder: Path | str, form: str, *, overwrite: bool = False) -> list[Path]:
    """Write an embedding in the form of another program.

    Args:
        embedding: equal rows for each encoder.
        folder: where to; made if it is missing.
        form: a key of `FORMS`.
        overwrite: replace files of the same names.

    Returns:
        The files written.

    Raises:
        WrongUse: no such form, or not one for this embedding.
        TiFixError: a file exists, or the disk does not take it.
    """
    chosen, family = _checked(embedding, form)
    files = chosen.files(embedding, family, _stem(embedding, chosen))
    paths = {Path(folder) / name: data for name, data in files.items()}
    taken = [path for path in paths if os.path.lexists(path)]
    if taken and not overwrite:
        raise TiFixError(f"{taken[0]} exists already; choose another folder, or allow overwriting (--overwrite).")
    return [write_bytes(path, data, overwrite=overwrite) for path, data in paths.items()]


def usage(embedding: Embedding, form: str) -> str:
    """Where the files of a form go and how a prompt calls the embedding.

    Raises:
        WrongUse: as for `export`.
    """
    chosen, _ = _checked(embedding, form)
    return chosen.usage.format(name=_stem(embedding, chosen), token=placeholder(embedding.name))


def placeholder(name: str) -> str:
    """The name as diffusers' trainers write a new token: ``<name>``, which no vocabulary holds."""
    return f"<{re.sub(r'[<>]', '', name).strip() or 'embedding'}>"


def _checked(embedding: Embedding, form: str) -> tuple[Form, Family]:
    chosen, family = FORMS.get(form), embedding.family
    if chosen is None:
        raise WrongUse(f"there is no form {form!r}; choose one of: {', '.join(FORMS)}.")
    if family is None or family.name not in {f.name for f in chosen.families}:
        able = ", ".join(f.title for f in chosen.families)
        whose = family.title if family else " and ".join(embedding.vectors) or "no model"
        raise WrongUse(
            f"{chosen.title} takes embeddings for {able}; {embedding.name!r} is for {whose}: convert it first."
        )
    if len({block.shape[0] for block in embedding.vectors.values()}) > 1:
        raise WrongUse(f"the halves of {embedding.name!r} have different numbers of vectors; repair it first.")
    return chosen, family


def _stem(embedding: Embedding, form: Form) -> str:
    name = file_name(embedding.name)
    return name if form.spaces else re.sub(r"[\s,:()\[\]]+", "_", name)


def _plain(embedding: Embedding, family: Family, stem: str) -> Mapping[str, bytes]:
    return {f"{stem}.safetensors": to_bytes(embedding, family=family)}


def _webui(embedding: Embedding, family: Family, stem: str) -> Mapping[str, bytes]:
    """One dict as the WebUI's Train tab saves it; for SDXL the two halves and nothing else, as extra texts stop it."""
    blocks = {key: block.detach().to("cpu", torch.float32, copy=True) for key, block in embedding.vectors.items()}
    if family.name == SDXL.name:
        return {f"{stem}.pt": torch_bytes(blocks)}
    about = {key: value for key, value in embedding.metadata.items() if travels(key, value)}
    (block,) = blocks.values()
    saved = {
        "string_to_token": {"*": 265},
        "string_to_param": {"*": block},
        "name": embedding.name,
        "step": int(about["step"]) if about.get("step", "").isascii() and about.get("step", "").isdigit() else None,
        "sd_checkpoint": about.get("sd_checkpoint"),
        "sd_checkpoint_name": about.get("sd_checkpoint_name"),
    }
    return {f"{stem}.pt": torch_bytes(saved)}


def torch_bytes(tree: Mapping[str, Any]) -> bytes:
    """A torch zip with the records of torch 1.6: the pickle, its version, the numbers; always the same bytes.

    A1111 refuses a file with records that its list does not know (``.format_version``, ``.storage_alignment`` of recent
    torch; before 1.10 also ``byteorder`` and ``.data/serialization_id``). None of them is needed to read it.
    """
    saved = io.BytesIO()
    torch.save(dict(tree), saved)
    slim = io.BytesIO()
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(slim, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            if re.fullmatch(r"[^/]+/(data\.pkl|version|data/\d+)", name):
                new.writestr(zipfile.ZipInfo(name), old.read(name))
    return slim.getvalue()


def _diffusers(embedding: Embedding, family: Family, stem: str) -> Mapping[str, bytes]:
    """A folder of its own with one file per encoder, each with the placeholder as its only key."""
    token = placeholder(embedding.name)
    names = {key: f"{stem}/learned_embeds{'_2' if key == CLIP_G.key else ''}.safetensors" for key in embedding.vectors}
    return {names[key]: pack({token: block}, embedding, family) for key, block in embedding.vectors.items()}


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "a1111": Form(
            title="A1111",
            families=(SD15, SD2, SDXL, SDXL_REFINER),
            files=_webui,
            usage="Put it into the WebUI's embeddings folder and write {name} in the prompt.",
        ),
        "diffusers": Form(
            title="diffusers",
            families=(SD15, SD2, SDXL),
            files=_diffusers,
            usage=(
                "pipe.load_textual_inversion(FOLDER, weight_name='learned_embeds.safetensors'), for SDXL once more "
                "with 'learned_embeds_2.safetensors', text_encoder=pipe.text_encoder_2 and "
                "tokenizer=pipe.tokenizer_2; then write {token} in the prompt."
            ),
        ),
        "comfyui": Form(
            title="ComfyUI",
            families=tuple(FAMILIES.values()),
            files=_plain,
            usage="Put it into models/embeddings and write embedding:{name} in the prompt.",
            spaces=False,
        ),
        "invokeai": Form(
            title="InvokeAI",
            families=(SD15, SD2, SDXL),
            files=_plain,
            usage="Add it in the model manager and write <{name}> in the prompt.",
            spaces=False,
        ),
    }
)
"""The forms by the word for them on the command line. SD3 and Flux embeddings are read by ComfyUI alone."""
