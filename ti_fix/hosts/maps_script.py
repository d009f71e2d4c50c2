"""Attention maps in a WebUI's txt2img and img2img: tells a recorder which rows of the batch are which picture's.

What records and what draws the controls is handed in (`install`), so that no feature is imported here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from modules import images, prompt_parser, script_callbacks, scripts, shared
from torch import Tensor

from ti_fix.hosts.load_hook import quietly
from ti_fix.hosts.webui import kind_of_host

SUFFIX = "-maps"


class Run(Protocol):
    """One batch's recording; `ti_fix.ui.maps.MapRun`."""

    def close(self) -> None:
        """Take every hook off; harmless a second time."""

    def expect(self, contexts: Tensor, rows: Sequence[tuple[int, str]], vectors: Mapping[str, int], step: int) -> None:
        """A sampling step begins."""

    def sheets(self, pictures: Sequence[Any]) -> list[tuple[int, Any, str]]:
        """(picture, sheet, numbers in words)."""


class _Parts:
    """What `install` was given, and the batch that is being recorded."""

    draw: Callable[[str], list[Any]] | None = None
    begin: Callable[..., Run] | None = None
    run: Run | None = None
    batch: Any = None


_parts = _Parts()


def install(draw: Callable[[str], list[Any]], begin: Callable[..., Run]) -> None:
    """Join the script to what it shows and to what records.

    Args:
        draw: draws the controls of a tab into the Gradio block that is open.
        begin: starts a recording of (unet, steps, values of the controls).
    """
    _parts.draw, _parts.begin = draw, begin
    script_callbacks.on_cfg_denoiser(lambda params: quietly(lambda: _step(params), None))
    script_callbacks.on_script_unloaded(close)


def close() -> None:
    """End a recording that may be left from a generation that failed."""
    run, _parts.run, _parts.batch = _parts.run, None, None
    if run is not None:
        run.close()


class MapsScript(scripts.Script):  # type: ignore[misc]
    """The fold “Attention maps” below the other settings."""

    def title(self) -> str:
        """Its name in the WebUI's lists of scripts, and in API requests."""
        return "TI Fix attention maps"

    def show(self, is_img2img: bool) -> Any:  # noqa: ARG002 - the host's signature
        """In both tabs, always to be seen."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        """Draw the controls."""
        return _parts.draw("img2img" if is_img2img else "txt2img") if _parts.draw else []

    def before_process(self, p: Any, *args: Any) -> None:  # noqa: ARG002 - the host's signature
        """A generation begins: nothing of an earlier one may be left."""
        close()
        self._found: list[tuple[int, Run, int]] = []

    def process_batch(self, p: Any, on: bool = False, *values: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """A batch begins."""
        if on:
            quietly(lambda: _begin(p, values), None)

    def postprocess_batch(self, p: Any, on: bool = False, *values: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """A batch is done: end its recording, keep what it found until the pictures are finished."""
        run = _parts.run
        close()
        if run is not None:
            self._found.append((int(kwargs.get("batch_number", 0)), run, len(p.prompts)))

    def postprocess(self, p: Any, processed: Any, on: bool = False, *values: Any) -> None:  # noqa: ARG002
        """All pictures are finished: put the sheets behind them."""
        close()
        found, self._found = getattr(self, "_found", []), []
        if found:
            quietly(lambda: _append(p, processed, found), None)


def _begin(p: Any, values: Sequence[Any]) -> None:
    close()
    if _parts.begin is None:
        return
    model = p.sd_model
    forge = getattr(model, "forge_objects", None)
    unet = model.model.diffusion_model if forge is None else forge.unet.model.diffusion_model
    _parts.run, _parts.batch = _parts.begin(unet, int(p.steps), *values), weakref.ref(p)
    weakref.finalize(p, _parts.run.close)  # a generation that fails calls nothing of ours any more


def _step(params: Any) -> None:
    """Before each step of the sampler, with the conditioning that it will use."""
    p = _parts.batch() if _parts.batch is not None else None
    if _parts.run is None or p is None:
        return
    cond = params.text_cond
    contexts = cond["crossattn"] if isinstance(cond, dict) else cond
    step = int(getattr(params.denoiser, "step", params.sampling_step) or 0)
    _parts.run.expect(contexts, list(_rows(p, step)), _vectors(), step)


def _rows(p: Any, step: int) -> Iterator[tuple[int, str]]:
    """Picture and text of each row: every part of every prompt (AND), as it stands at this step."""
    prompts = p.hr_prompts if getattr(p, "is_hr_pass", False) else p.prompts
    parts, texts, _ = prompt_parser.get_multicond_prompt_list(prompts)
    for picture, indexes in enumerate(parts):
        for index, _weight in indexes:
            yield picture, _at_step(texts[index], step, int(p.steps))


def _at_step(text: str, step: int, steps: int) -> str:
    schedule = prompt_parser.get_learned_conditioning_prompt_schedules([text], steps)[0]
    return next((str(each) for end, each in schedule if step <= end), text)


def _vectors() -> dict[str, int]:
    """Vectors of the embeddings that prompts can call."""
    return {
        name: int(entry.vectors)
        for database in kind_of_host().databases()[:1]
        for name, entry in database.word_embeddings.items()
    }


def _append(p: Any, processed: Any, found: Sequence[tuple[int, Run, int]]) -> None:
    first = int(getattr(processed, "index_of_first_image", 0))
    size = max(count for _, _, count in found)
    for number, run, count in found:
        start = first + number * size
        pictures = list(processed.images[start : start + count])
        for picture, image, told in run.sheets(pictures):
            place = number * size + picture
            text = f"{processed.infotexts[first + place]}, TI Fix maps: {told}"
            processed.images.append(image)
            processed.infotexts.append(text)
            if not getattr(p, "do_not_save_samples", False) and shared.opts.samples_save:
                seed, prompt = processed.all_seeds[place], processed.all_prompts[place]
                images.save_image(
                    image, p.outpath_samples, "", seed, prompt, shared.opts.samples_format, info=text, suffix=SUFFIX
                )
