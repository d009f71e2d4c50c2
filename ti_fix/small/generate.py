"""Pictures from a small model for many captions at once: for measurements; hosts have their own samplers."""

from __future__ import annotations

import torch
from torch import Tensor

from ti_fix.small.models import TIME_IDS, SmallModel
from ti_fix.small.sampling import noise_for, sample
from ti_fix.small.schedule import alphas_cumprod


class Painter:
    """Guided sampling of a small model, SDXL or SD1.5."""

    def __init__(self, model: SmallModel, guidance: float = 4.0, steps: int = 12) -> None:
        self.model, self.guidance, self.steps = model, guidance, steps
        self.alphas = alphas_cumprod(bool(model.scheduler.get("rescale_betas_zero_snr")))
        self.prediction = str(model.scheduler["prediction_type"])

    def condition(self, texts: list[str]) -> tuple[Tensor, Tensor | None]:
        """Cross-attention states (n, 77, width) and, for SDXL, pooled vectors (n, 64)."""
        states, pooled = [], None
        for key, encoder in self.model.text_encoders.items():
            ids = self.model.tokenizers[key](
                texts, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
            ).input_ids
            out = encoder(input_ids=ids, output_hidden_states=True)
            sdxl = self.model.family == "sdxl"
            states.append(out.hidden_states[-2] if sdxl else out.last_hidden_state)
            pooled = out.text_embeds if key == "clip_g" else pooled
        return torch.cat(states, -1), pooled

    def predict(self, x: Tensor, t: Tensor, states: Tensor, pooled: Tensor | None) -> Tensor:
        """UNet output for latents (n, 4, 16, 16)."""
        added = None
        if pooled is not None:
            added = {"text_embeds": pooled, "time_ids": torch.tensor([TIME_IDS]).expand(len(x), 6).float()}
        return self.model.unet(x, t, states, added_cond_kwargs=added).sample

    @torch.no_grad()
    def paint(self, texts: list[str], seed: int = 0, batch: int = 64) -> Tensor:
        """Pictures (n, 3, 128, 128) in -1..1; picture i starts from noise ``seed + i``."""
        pictures = []
        for i in range(0, len(texts), batch):
            lines = texts[i : i + batch]
            pictures.append(self.paint_conditions(*self.condition(lines), [seed + i + k for k in range(len(lines))]))
        return torch.cat(pictures)

    @torch.no_grad()
    def paint_conditions(self, states: Tensor, pooled: Tensor | None, seeds: list[int]) -> Tensor:
        """Pictures for text conditions, guided against SDXL's zeros or SD1.5's empty caption; one seed each."""
        if pooled is None:
            both, pools = torch.cat([self.condition([""])[0].expand_as(states), states]), None
        else:
            both = torch.cat([torch.zeros_like(states), states])
            pools = torch.cat([torch.zeros_like(pooled), pooled])

        def guided(x: Tensor, t: Tensor) -> Tensor:
            free, told = self.predict(torch.cat([x, x]), torch.cat([t, t]), both, pools).chunk(2)
            return free + self.guidance * (told - free)

        z = sample(guided, noise_for(seeds), self.alphas, self.prediction, self.steps)
        return self.model.vae.decode(z / float(self.model.vae.config.scaling_factor)).sample.clamp(-1, 1)
