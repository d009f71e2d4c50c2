"""The WebUI's own interrogators, for captions; it fetches their models itself, so what is missing is told first.

Sizes are those of the files that the hosts name; licences those of the projects that the files come from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modules import shared

from ti_fix.errors import TiFixError

BLIP = "BLIP base captioning (0.9 GB, BSD-3-Clause, from storage.googleapis.com)"
CLIP = "OpenAI CLIP ViT-L/14 (0.9 GB, MIT, from openaipublic.azureedge.net)"
LISTS = "the word lists of CLIP Interrogator (a few MB, MIT, from raw.githubusercontent.com)"
DANBOORU = "DeepDanbooru for torch (0.6 GB, MIT, from github.com)"


class Sentences:
    """“Interrogate CLIP”: BLIP's sentence; the styles that the host appends say nothing of a single picture."""

    key, name, kind = "sentences", "Interrogate CLIP", "as a sentence"

    def needed(self) -> Sequence[str]:
        """What the host would download."""
        folder = getattr(shared.cmd_opts, "clip_models_path", None) or Path.home() / ".cache" / "clip"
        there = {
            BLIP: _any("BLIP", "*.pth"),
            CLIP: (Path(folder) / "ViT-L-14.pt").is_file(),
            LISTS: Path(shared.interrogator.content_dir).is_dir(),
        }
        return [what for what, found in there.items() if not found]

    def caption(self, image: Any) -> str:
        """What the host says up to the first comma.

        Raises:
            TiFixError: the host says that it failed.
        """
        told = str(shared.interrogator.interrogate(image))
        if "<error>" in told:
            raise TiFixError("Interrogate CLIP failed; the console of the WebUI says why.")
        return told.partition(",")[0]


class Tags:
    """“Interrogate DeepBooru”."""

    key, name, kind = "tags", "Interrogate DeepBooru", "as tags"

    def needed(self) -> Sequence[str]:
        """What the host would download."""
        return [] if _any("torch_deepdanbooru", "*.pt") else [DANBOORU]

    def caption(self, image: Any) -> str:
        """Tags by the host's threshold and filter, without ranks, which prompts would read as emphasis."""
        model = sys.modules["modules.deepbooru"].model
        model.start()
        try:
            return str(model.tag_multi(image, force_disable_ranks=True))
        finally:
            model.stop()


def captioners() -> list[Sentences | Tags]:
    """Those that this WebUI has."""
    return list(_there())


def _there() -> Iterator[Sentences | Tags]:
    if hasattr(getattr(shared, "interrogator", None), "content_dir"):
        yield Sentences()
    if hasattr(sys.modules.get("modules.deepbooru"), "model"):
        yield Tags()


def _any(name: str, pattern: str) -> bool:
    """Whether the host's folder of such models holds one."""
    from modules import paths

    folder = Path(paths.models_path) / name
    return folder.is_dir() and any(folder.rglob(pattern))
