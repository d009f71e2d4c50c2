"""Textual Inversion of many jobs in one batch on a small model: the yardstick's own, deliberately plain trainer.

Rows of a batch are independent and Adam is elementwise, so running jobs together equals running them alone, at a
fraction of the cost. This is a measuring instrument for the small models, not the product's trainer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ti_fix.small import captions, latents, scenes
from ti_fix.small.concepts import Concept
from ti_fix.small.generate import Painter
from ti_fix.small.models import SmallModel
from ti_fix.small.vocabulary import BOS, EOS, PAD, VOCABULARY

MARK = "taster"  # stands for the new word in captions; a one-token word that no caption uses
TOKENS = 77
WEIGHT_CAP = 40.0  # noise counts as in the training of the models: unweighted, hues go away from what is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One embedding to train: a concept, a seed and the variant's settings."""

    concept: Concept
    seed: int = 0
    rate: float = 2e-3
    vectors: int = 1
    pictures: int = 5
    start: str = "class"  # "class" word or "random"


class TokenRowsWithJobs(nn.Module):
    """A frozen token table followed by the jobs' vectors; id 49408 + job * vectors + k is vector k of a job."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(table, requires_grad=False)
        self.new: Tensor = table.new_zeros(0, table.shape[1])

    def forward(self, ids: Tensor) -> Tensor:
        """Ids of any shape -> rows, one more axis."""
        known = nn.functional.embedding(ids.clamp(max=VOCABULARY - 1), self.weight)
        if not len(self.new):
            return known
        own = nn.functional.embedding((ids - VOCABULARY).clamp(min=0), self.new)
        return torch.where((ids >= VOCABULARY)[..., None], own, known)


class Inverter:
    """A small SDXL or SD1.5 with room for many jobs' vectors."""

    def __init__(self, model: SmallModel) -> None:
        self.model = model
        self.tables: dict[str, TokenRowsWithJobs] = {}
        for key, encoder in model.text_encoders.items():
            self.tables[key] = TokenRowsWithJobs(encoder.get_input_embeddings().weight.detach())
            encoder.set_input_embeddings(self.tables[key])
        self.painter = Painter(model)
        (self.mark,) = self._tokens(MARK)

    def _tokens(self, text: str) -> list[int]:
        return list(self.model.tokenizers["clip_l"](text, add_special_tokens=False)["input_ids"])

    def word_vectors(self, word: str) -> dict[str, Tensor]:
        """Rows of the first token of a word, per encoder."""
        token = self._tokens(word)[0]
        return {k: t.weight[token].detach().clone() for k, t in self.tables.items()}

    def ids(self, texts: list[str], jobs: list[int], vectors: int, encoder: str) -> Tensor:
        """Caption ids (n, 77) with each MARK replaced by the job's vectors."""
        rows = []
        for text, job in zip(texts, jobs, strict=True):
            row = [BOS]
            for token in self._tokens(text):
                row += [VOCABULARY + job * vectors + k for k in range(vectors)] if token == self.mark else [token]
            row = [*row[: TOKENS - 1], EOS]
            rows.append(row + [PAD[encoder]] * (TOKENS - len(row)))
        return torch.tensor(rows)

    def condition(self, texts: list[str], jobs: list[int], vectors: int) -> tuple[Tensor, Tensor | None]:
        """Cross-attention states and, for SDXL, pooled vectors for captions of given jobs."""
        states, pooled = [], None
        for key, encoder in self.model.text_encoders.items():
            out = encoder(input_ids=self.ids(texts, jobs, vectors, key), output_hidden_states=True)
            states.append(out.hidden_states[-2] if self.model.family == "sdxl" else out.last_hidden_state)
            pooled = out.text_embeds if key == "clip_g" else pooled
        return torch.cat(states, -1), pooled

    def start_vectors(self, jobs: list[Job], encoder: str) -> Tensor:
        """Initial vectors (jobs * vectors, width): the class word, or noise of its length."""
        rows = []
        for job in jobs:
            generator = torch.Generator().manual_seed(50 + job.seed)
            row = self.word_vectors(job.concept.class_word)[encoder]
            for k in range(job.vectors):
                noise = torch.randn(row.shape, generator=generator) * row.norm() / row.numel() ** 0.5
                rows.append(noise if job.start == "random" else row + (0.1 * noise if k else 0))
        return torch.stack(rows)

    def train(
        self, jobs: list[Job], steps: int, per_step: int = 4, fixed: Mapping[str, Tensor] | None = None
    ) -> list[dict[str, Tensor]]:
        """Train all jobs; returns each encoder's vectors after every step (index 0: before the first).

        Args:
            jobs: what to train.
            steps: how long.
            per_step: pictures a job and step.
            fixed: encoder key -> (jobs * vectors, width) that stay as they are, beside which the others are trained.
        """
        vectors, fixed = jobs[0].vectors, fixed or {}
        new = {k: self.start_vectors(jobs, k).requires_grad_() for k in self.tables if k not in fixed}
        for key, table in self.tables.items():
            table.new = new[key] if key in new else fixed[key]
        optimiser = torch.optim.Adam([{"params": [p]} for p in new.values()], lr=1.0, betas=(0.9, 0.99))
        rates = torch.tensor([j.rate for j in jobs]).repeat_interleave(vectors)[:, None]
        shown = [_pictures(job) for job in jobs]
        draws = [random.Random(77 + job.seed) for job in jobs]
        noise = [torch.Generator().manual_seed(77 + job.seed) for job in jobs]
        history = [{k: p.detach().clone() for k, p in new.items()}]
        for step in range(steps):
            loss = self._loss(jobs, shown, draws, noise, per_step)
            optimiser.zero_grad()
            loss.backward()
            before = {k: p.detach().clone() for k, p in new.items()}
            optimiser.step()
            warm = min(1.0, (step + 1) / 5)
            with torch.no_grad():  # one optimiser, a rate per job
                for key, p in new.items():
                    p.copy_(before[key] + warm * rates * (p - before[key]))
            history.append({k: p.detach().clone() for k, p in new.items()})
        return history

    def _loss(
        self,
        jobs: list[Job],
        shown: list[tuple[Tensor, list[captions.Described]]],
        draws: list[random.Random],
        noise: list[torch.Generator],
        per_step: int,
    ) -> Tensor:
        z, t, e, texts, owner = [], [], [], [], []
        for k, (latent, described) in enumerate(shown):
            chosen = [draws[k].randrange(len(described)) for _ in range(per_step)]
            z.append(latent[chosen])
            spread = torch.arange(per_step) + torch.rand(per_step, generator=noise[k])  # stratified
            t.append((spread / per_step * 1000).long().clamp(max=999))
            e.append(torch.randn(latent[chosen].shape, generator=noise[k]))
            texts += [captions.plain_caption(described[i], draws[k]) for i in chosen]
            owner += [k] * per_step
        clean, times, eps = torch.cat(z), torch.cat(t), torch.cat(e)
        a = self.painter.alphas[times][:, None, None, None]
        x = a.sqrt() * clean + (1 - a).sqrt() * eps
        out = self.painter.predict(x, times, *self.condition(texts, owner, jobs[0].vectors))
        wanted = eps if self.painter.prediction == "epsilon" else a.sqrt() * eps - (1 - a).sqrt() * clean
        weight = (1 / a).clamp(max=WEIGHT_CAP) if self.painter.prediction == "epsilon" else torch.ones_like(a)
        return (weight * (out - wanted) ** 2).mean((1, 2, 3)).sum() / per_step

    @torch.no_grad()
    def generate(
        self,
        texts: list[str],
        jobs: list[int],
        vectors: dict[str, Tensor],
        per_job: int,
        seeds: list[int],
    ) -> Tensor:
        """Pictures (n, 3, 128, 128) in -1..1 for captions that may hold MARK."""
        for key, table in self.tables.items():
            table.new = vectors[key]
        parts = [slice(i, i + 64) for i in range(0, len(texts), 64)]
        return torch.cat(
            [self.painter.paint_conditions(*self.condition(texts[p], jobs[p], per_job), seeds[p]) for p in parts]
        )


def _pictures(job: Job) -> tuple[Tensor, list[captions.Described]]:
    """The job's training pictures as guide latents, described with MARK."""
    rng = random.Random(f"{job.concept.name}{job.seed}")
    described = [job.concept.draw(rng, MARK) for _ in range(job.pictures)]
    pixels = np.stack([scenes.render(d.scene) for d in described])
    return latents.target(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1), described
