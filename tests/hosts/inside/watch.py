"""Everything of a WebUI that training could leave changed, and a way to make any stage of a run fail."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def networks(model: Any) -> list[torch.nn.Module]:
    """Every network of a loaded model."""
    if isinstance(model, torch.nn.Module):
        return [model]
    objects = model.forge_objects_original
    return [objects.unet.model, objects.clip.cond_stage_model, objects.vae.first_stage_model]


def fingerprint(model: Any) -> dict[str, Any]:
    """Numbers, identity, kind, place, flags, hooks and functions of all weights, and what lies around them."""
    numbers, about, seen = hashlib.sha256(), [], set()
    for network in networks(model):
        for name, part in network.named_modules():
            if id(part) in seen:
                continue
            seen.add(id(part))
            hooks = [len(getattr(part, kind)) for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
            about.append((name, part.training, hooks, str(part.__dict__.get("forward"))))
            for entries in (part._parameters, part._buffers):
                for key, tensor in entries.items():
                    if tensor is not None:
                        numbers.update(_bytes(tensor))
                        about.append((name, key, *_about(tensor)))
    return {
        "numbers": numbers.hexdigest(),
        "flags": hashlib.sha256(repr(about).encode()).hexdigest(),
        "entries": len(about),
        **surroundings(model),
    }


def _about(tensor: torch.Tensor) -> tuple[Any, ...]:
    flags = tensor.requires_grad, tensor.is_inference(), str(tensor.dtype), str(tensor.device)
    return id(tensor), type(tensor).__name__, flags, tensor.grad is None


def _bytes(tensor: torch.Tensor) -> bytes:
    """The numbers; of a table whose rows share memory each number once."""
    with torch.inference_mode():
        plain = tensor.detach()
        if plain.untyped_storage().nbytes() < plain.numel() * plain.element_size():
            plain = plain.as_strided((plain.untyped_storage().nbytes() // plain.element_size(),), (1,))
        return plain.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()


def surroundings(model: Any) -> dict[str, str]:
    """What of the host lies outside the networks."""
    found: dict[str, str] = {}
    for name in ("ldm.modules.attention", "sgm.modules.attention"):
        owner = getattr(sys.modules.get(name), "CrossAttention", None)
        found[name] = str(owner and owner.forward)
    found["attention"] = str(getattr(sys.modules.get("backend.nn.unet"), "attention_function", ""))
    engines = sys.modules.get("backend.text_processing.classic_engine")
    found["infotext"] = str(getattr(engines, "last_extra_generation_params", ""))
    shared = sys.modules["modules.shared"]
    found["options"] = hashlib.sha256(repr(sorted(shared.opts.data.items(), key=str)).encode()).hexdigest()
    hijack = getattr(sys.modules.get("modules.sd_hijack"), "model_hijack", None)
    found["hijack"] = str((getattr(hijack, "fixes", None), getattr(hijack, "extra_generation_params", None)))
    engine_names = ("text_processing_engine", "text_processing_engine_l", "text_processing_engine_g")
    for name in engine_names:
        engine = getattr(model, name, None)
        if engine is not None:
            found[name] = str((engine.clip_skip, type(engine.emphasis).__name__, engine.embeddings.fixes))
    for number, database in enumerate(sys.modules["ti_fix.hosts.webui"]._installed[0]._kind.databases()):
        known = {first: [each.name for _, each in entries] for first, entries in database.ids_lookup.items()}
        found[f"database {number}"] = str((sorted(database.word_embeddings), sorted(known.items())))
    found["job"] = str((shared.state.job, shared.state.job_count))
    return found


STAGES = (
    "place", "text", "text layer", "unet", "unet block", "gradient", "second pass", "update", "images", "preview",
)  # fmt: skip
"""Where a run can fail."""


@contextmanager
def failing(stage: str, model: Any, error: type[BaseException]) -> Iterator[None]:
    """While open, this stage of a run raises.

    Args:
        stage: one of `STAGES`.
        model: a `HostModel`.
        error: what is raised.
    """
    from ti_fix.hosts import host_model, training_host
    from ti_fix.hosts.borrow import attribute
    from ti_fix.train.optimise import AdamW

    def fail(*_: Any, **__: Any) -> Any:
        raise error(stage)

    encoder = model.text.encoders[0].engine
    inner = getattr(encoder, "wrapped", None) or encoder.text_encoder
    leaves = [part for part in inner.modules() if not list(part.children())]
    layers = [part for part in leaves if type(part).__name__ == "LayerNorm"] or leaves
    blocks = [part for part in model.unet.modules() if type(part).__name__ == "BasicTransformerBlock"]
    loaded = type(model._loaded)
    places: dict[str, tuple[Any, str, Any]] = {
        "place": (loaded, "size_features", fail),
        "text": (type(encoder), "process_tokens", fail),
        "text layer": (layers[-1], "forward", fail),
        "unet": (model.unet, "forward", fail),
        "unet block": (blocks[-1], "forward", fail),
        "gradient": (torch.autograd, "grad", fail),
        "second pass": (host_model.HostModel, "two_passes", property(fail)),
        "update": (AdamW, "update", fail),
        "images": (loaded, "encode_images", fail),
        "preview": (training_host, "generate", fail),
    }
    with attribute(*places[stage]):
        yield
