"""Tiny checkpoints in a WebUI's own layout, so that any installation can be checked without a download or a GPU."""

from __future__ import annotations

from pathlib import Path

from tests.hosts import evaluate_files
from tests.hosts.tiny_models import small
from ti_fix.small import load
from ti_fix.small.packs import FOLDER
from ti_fix.small.write_checkpoint import write_demo_model

MATCHER = Path(__file__).parent / "demo_matcher"
"""The test-only extension that lets Forge load checkpoints of unpublished sizes."""


def is_forge(webui: Path) -> bool:
    """Whether an installation needs Forge's layout."""
    return (webui / "backend").is_dir()


def write(webui: Path, folder: Path, *, trained: bool = False) -> tuple[Path, ...]:
    """One checkpoint each for SDXL and SD1.5 of the real widths.

    Args:
        webui: the installation that is to load them.
        folder: where they are written.
        trained: the project's small models, where they are there; else, and otherwise, tiny ones with random weights.

    Returns:
        extensions that the installation needs for them.
    """
    layout = "forge" if is_forge(webui) else "a1111"
    for name in ("sdxl", "sd15"):
        packed = (FOLDER / f"{name}.safetensors").exists()
        model = load(name) if trained and packed else small(name)
        write_demo_model(model, layout, folder / f"tiny_{name}.safetensors")
    return (MATCHER,) if is_forge(webui) else ()


def write_small(webui: Path, folder: Path) -> tuple[Path, ...]:
    """The small SDXL that ships with the project, whose pictures show something; see `write`."""
    folder.mkdir(parents=True, exist_ok=True)
    evaluate_files.write_model("forge" if is_forge(webui) else "a1111", folder)
    return (MATCHER,) if is_forge(webui) else ()
