"""Pictures and their texts to scores, one value a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from ti_fix.evaluate import adherence, metrics
from ti_fix.evaluate.backbone import Backbone, PictureJudge
from ti_fix.evaluate.config import EvalConfig
from ti_fix.evaluate.statistics import Estimate, estimate
from ti_fix.phrases import GROUPS, lexicon, phrases

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class References:
    """Features of the pictures that an embedding was made from.

    Attributes:
        clip, dino: (m, width), None without references or without that judge.
        masked: features of the subject alone, where masks are known.
    """

    clip: Tensor | None = None
    dino: Tensor | None = None
    masked: Tensor | None = None

    def ceilings(self) -> dict[str, Estimate]:
        """What a picture that were one of the references would score, by metric."""
        sets = {"clip_i": self.clip, "dino": self.dino, "masked_clip_i": self.masked}
        kept = {name: f for name, f in sets.items() if f is not None and len(f) > 1}
        found = {name: estimate(metrics.ceiling(features)) for name, features in kept.items()}
        return {name: each for name, each in found.items() if each is not None}


@dataclass(slots=True, kw_only=True, eq=False)
class Scorer:
    """Scores pictures with one judge; texts are encoded once.

    Attributes:
        judge: of pictures and texts.
        config: class word, own groups, quality texts.
        references: what likeness is measured to.
        dino: a judge of pictures alone.
    """

    judge: Backbone
    config: EvalConfig
    references: References = field(default_factory=References)
    dino: PictureJudge | None = None
    _texts: dict[str, Tensor] = field(default_factory=dict)

    def score(
        self,
        pictures: Sequence[Image.Image],
        texts: Sequence[str],
        masks: Sequence[Image.Image | None] = (),
    ) -> dict[str, Tensor]:
        """Metric -> (n,) values, NaN where a picture has none.

        Args:
            pictures: n of them.
            texts: what each should show, the class word in the place of the embedding; empty where it is not known.
            masks: where the subject is, for `masked_clip_i`.
        """
        features = self.judge.pictures(pictures)
        quality = self._quality(features)
        scores = {**self._likeness(pictures, features, masks), "clip_iqa": quality}
        if any(texts):
            scores |= self._obedience(features, texts, quality)
        return scores

    def _likeness(
        self, pictures: Sequence[Image.Image], features: Tensor, masks: Sequence[Image.Image | None]
    ) -> dict[str, Tensor]:
        known, scores = self.references, {}
        if known.clip is not None:
            scores["clip_i"] = metrics.clip_i(features, known.clip)
        if known.dino is not None and self.dino is not None:
            scores["dino"] = metrics.clip_i(self.dino.pictures(pictures), known.dino)
        if known.masked is not None and any(mask is not None for mask in masks):
            values = torch.full((len(pictures),), NAN)
            for number, (picture, mask) in enumerate(zip(pictures, masks, strict=True)):
                if mask is not None:
                    alone = self.judge.pictures([metrics.masked(picture, mask)])
                    values[number] = metrics.clip_i(alone, known.masked)[0]
            scores["masked_clip_i"] = values
        return scores

    def _quality(self, features: Tensor) -> Tensor:
        good, bad = (self._encoded([text]) for text in (self.config.good, self.config.bad))
        return metrics.clip_iqa(features, good, bad, self.judge.scale)[:, 0]

    def _obedience(self, features: Tensor, texts: Sequence[str], quality: Tensor) -> dict[str, Tensor]:
        cosines = metrics.clip_t(features, self._encoded([text or " " for text in texts]))
        cosines[[not text for text in texts]] = NAN
        groups = self._groups(features, texts)
        scores = {"clip_t": cosines, "clip_score_25": metrics.clip_score_25(cosines)}
        scores |= {f"adherence.{group}": values for group, values in groups.items() if not values.isnan().all()}
        if groups:
            scores["adherence_q"] = metrics.adherence_q(torch.stack(list(groups.values()), dim=1), quality)
        return scores

    def _groups(self, features: Tensor, texts: Sequence[str]) -> dict[str, Tensor]:
        """Group -> (n,) mean adherence of a text's words of that group."""
        words = lexicon(self.config.groups, [self.config.class_word])
        found: dict[str, Tensor] = {}
        for number, text in enumerate(texts):
            known = [phrase for phrase in phrases(text, words) if phrase.alternatives]
            scores = adherence.of_phrases(features[number], text, known, self._encoded, self.judge.scale)
            for group in dict.fromkeys(phrase.group for phrase in known):
                values = [score for phrase, score in zip(known, scores, strict=True) if phrase.group == group]
                found.setdefault(group, torch.full((len(texts),), NAN))[number] = torch.stack(values).mean()
        order = [*GROUPS, *(group for group in found if group not in GROUPS)]
        return {group: found[group] for group in order if group in found}

    def _encoded(self, texts: Sequence[str]) -> Tensor:
        """Features of texts; each is encoded once in a run."""
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        if new:
            self._texts |= dict(zip(new, self.judge.texts(new), strict=True))
        return torch.stack([self._texts[text] for text in texts])


def reference_features(
    pictures: Sequence[Image.Image],
    judge: Backbone,
    dino: PictureJudge | None = None,
    masks: Sequence[Image.Image | None] = (),
) -> References:
    """Features of reference pictures; of the masked subject where every picture has a mask."""
    if not pictures:
        return References()
    alone = [metrics.masked(p, m) for p, m in zip(pictures, masks, strict=False) if m is not None]
    return References(
        clip=judge.pictures(pictures),
        dino=None if dino is None else dino.pictures(pictures),
        masked=judge.pictures(alone) if alone and len(alone) == len(pictures) else None,
    )


def estimates(scores: Mapping[str, Tensor]) -> dict[str, Estimate]:
    """Means with their intervals; metrics without any value are left out."""
    found = {name: estimate(values) for name, values in scores.items()}
    return {name: each for name, each in found.items() if each is not None}
