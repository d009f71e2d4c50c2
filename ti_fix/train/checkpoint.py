"""Files of a run: the state to resume from, embeddings of earlier steps, the result. Each is whole or not there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError
from ti_fix.formats.write import file_name, write, write_bytes
from ti_fix.train.config import TrainConfig


class Files:
    """Where a run writes; `TrainConfig.out` is set.

    Attributes:
        final: the result, named after the embedding.
        folder: everything else.
        state: what a run is resumed from.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._stem = file_name(config.name)
        self._keep = config.keep
        self._root = Path(config.out)
        self.final = self._root / f"{self._stem}.safetensors"
        self.folder = self._root / f"{self._stem}.training"
        self.state = self.folder / "latest.state"

    def refusal(self) -> str:
        """Why nothing can be written there, empty where it can: found out by writing, of which nothing stays."""
        probe = self.folder / "probe.tmp"
        new = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        try:
            write_bytes(probe, b"", overwrite=True)
        except TiFixError as error:
            return str(error).partition("cannot be written: ")[2] or str(error)
        with contextlib.suppress(OSError):
            probe.unlink()
            for place in new:
                place.rmdir()
        return ""

    def at_step(self, step: int) -> Path:
        """The embedding of a step, named as A1111 names it."""
        return self.folder / f"{self._stem}-{step}.safetensors"

    def write_state(self, data: bytes) -> Path:
        """Replace the saved state."""
        return write_bytes(self.state, data, overwrite=True)

    def write_step(self, embedding: Embedding, step: int) -> Path:
        """Write the embedding of a step and remove the oldest beyond those to keep; this one stays."""
        path = write(embedding, self._made(self.at_step(step)), overwrite=True)
        pattern = re.compile(re.escape(self._stem) + r"-(\d+)\.safetensors")
        found = [(int(m[1]), p) for p in self.folder.iterdir() if (m := pattern.fullmatch(p.name))]
        for _, old in sorted(found)[: -max(1, self._keep)]:
            with contextlib.suppress(OSError):
                old.unlink()
        return path

    def write_final(self, embedding: Embedding) -> Path:
        """Write the result."""
        return write(embedding, self._made(self.final), overwrite=True)

    @staticmethod
    def _made(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def about(config: TrainConfig, step: int, pictures: int, prediction: str) -> dict[str, str]:
    """What is written into the header of an embedding: numbers of the run, nothing private."""
    return {
        "ss_steps": str(step),
        "ss_learning_rate": config.learning_rate,
        "ss_optimizer": config.optimiser,
        "ss_lr_scheduler": config.schedule,
        "ss_num_train_images": str(pictures),
        "ss_total_batch_size": str(config.batch_size * config.accumulate),
        "ss_seed": str(config.seed),
        "ss_resolution": f"({config.resolution}, {config.resolution})",
        "modelspec.prediction_type": "v" if prediction == "v_prediction" else "epsilon",
    }


def embedding_of(config: TrainConfig, vectors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Embedding:
    """The vectors under the name of the run."""
    return Embedding(name=config.name, vectors={k: v.detach().clone() for k, v in vectors.items()}, metadata=metadata)
