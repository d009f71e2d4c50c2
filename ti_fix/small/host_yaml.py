"""What AUTOMATIC1111 reads beside a checkpoint: which classes of ``sgm`` and ``ldm`` to build, and how large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SGM = "sgm.modules"


def webui_config(model: Any, *, clip_l: Path, bigg: Path | None) -> dict[str, Any]:
    """The model part of a ``.yaml`` for a wide model.

    Args:
        model: the model, at its real widths.
        clip_l: folder with CLIP-L's configuration and tokenizer.
        bigg: open_clip configuration of the second text encoder; None for SD1.5.
    """
    body = _sd15(model, clip_l) if bigg is None else _sdxl(model, clip_l, bigg)
    return {"model": body}


def _part(target: str, **params: Any) -> dict[str, Any]:
    return {"target": target, "params": params} if params else {"target": target}


def _sdxl(model: Any, clip_l: Path, bigg: Path) -> dict[str, Any]:
    kind = "V" if model.scheduler.get("prediction_type") == "v_prediction" else "Eps"
    denoiser = _part(
        f"{_SGM}.diffusionmodules.denoiser.DiscreteDenoiser",
        num_idx=1000,
        weighting_config=_part(f"{_SGM}.diffusionmodules.denoiser_weighting.EpsWeighting"),
        scaling_config=_part(f"{_SGM}.diffusionmodules.denoiser_scaling.{kind}Scaling"),
        discretization_config=_part(f"{_SGM}.diffusionmodules.discretizer.LegacyDDPMDiscretization"),
    )
    return _part(
        "sgm.models.diffusion.DiffusionEngine",
        scale_factor=model.vae.config.scaling_factor,
        disable_first_stage_autocast=True,
        denoiser_config=denoiser,
        network_config=_sdxl_unet(model.unet.config),
        # Built before the conditioner and not used by the host otherwise: this makes the text encoder's size known.
        sampler_config=_part("open_clip.add_model_config", path=str(bigg)),
        conditioner_config=_part(f"{_SGM}.GeneralConditioner", emb_models=_sdxl_embedders(model, clip_l, bigg)),
        first_stage_config=_vae(model, "sgm.models.autoencoder.AutoencoderKLInferenceWrapper", attn_type="vanilla"),
    )


def _sdxl_unet(unet: Any) -> dict[str, Any]:
    return _part(
        f"{_SGM}.diffusionmodules.openaimodel.UNetModel",
        adm_in_channels=unet.projection_class_embeddings_input_dim,
        num_classes="sequential",
        num_head_channels=64,
        use_linear_in_transformer=True,
        spatial_transformer_attn_type="softmax",
        transformer_depth=list(unet.transformer_layers_per_block),
        **_unet(unet),
    )


def _sdxl_embedders(model: Any, clip_l: Path, bigg: Path) -> list[dict[str, Any]]:
    layers = model.text_encoders["clip_l"].config.num_hidden_layers
    text = [
        _part(f"{_SGM}.encoders.modules.FrozenCLIPEmbedder", version=str(clip_l), layer="hidden", layer_idx=layers - 1),
        _part(
            f"{_SGM}.encoders.modules.FrozenOpenCLIPEmbedder2",
            arch=bigg.stem,
            version="none",
            freeze=True,
            layer="penultimate",
            always_return_pooled=True,
            legacy=False,
        ),
    ]
    sizes = ("original_size_as_tuple", "crop_coords_top_left", "target_size_as_tuple")
    numbers = _part(f"{_SGM}.encoders.modules.ConcatTimestepEmbedderND", outdim=256)
    embedders = [("txt", each) for each in text] + [(size, numbers) for size in sizes]
    return [{"is_trainable": False, "input_key": key, **each} for key, each in embedders]


def _sd15(model: Any, clip_l: Path) -> dict[str, Any]:
    unet = _part(
        "ldm.modules.diffusionmodules.openaimodel.UNetModel",
        image_size=32,
        num_heads=8,
        transformer_depth=1,
        **_unet(model.unet.config),
    )
    return _part(
        "ldm.models.diffusion.ddpm.LatentDiffusion",
        linear_start=0.00085,
        linear_end=0.012,
        num_timesteps_cond=1,
        timesteps=1000,
        first_stage_key="jpg",
        cond_stage_key="txt",
        image_size=64,
        channels=4,
        cond_stage_trainable=False,
        conditioning_key="crossattn",
        scale_factor=model.vae.config.scaling_factor,
        use_ema=False,
        unet_config=unet,
        first_stage_config=_vae(model, "ldm.models.autoencoder.AutoencoderKL"),
        cond_stage_config=_part("ldm.modules.encoders.modules.FrozenCLIPEmbedder", version=str(clip_l)),
    )


def _unet(unet: Any) -> dict[str, Any]:
    """What both families say about their UNet."""
    channels = unet.block_out_channels
    transformers = [2**level for level, kind in enumerate(unet.down_block_types) if "CrossAttn" in kind]
    return {
        "in_channels": unet.in_channels,
        "out_channels": unet.out_channels,
        "model_channels": channels[0],
        "channel_mult": [c // channels[0] for c in channels],
        "num_res_blocks": unet.layers_per_block,
        "attention_resolutions": transformers,
        "context_dim": unet.cross_attention_dim,
        "use_spatial_transformer": True,
        "use_checkpoint": False,
        "legacy": False,
    }


def _vae(model: Any, target: str, **extra: Any) -> dict[str, Any]:
    vae = model.vae.config
    channels = vae.block_out_channels
    sizes = {
        "double_z": True,
        "z_channels": vae.latent_channels,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": channels[0],
        "ch_mult": [c // channels[0] for c in channels],
        "num_res_blocks": vae.layers_per_block,
        "attn_resolutions": [],
        "dropout": 0.0,
        **extra,
    }
    return _part(target, embed_dim=vae.latent_channels, ddconfig=sizes, lossconfig=_part("torch.nn.Identity"))
