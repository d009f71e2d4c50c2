"""What `check_host` looks at: one WebUI without and with ti_fix, the same folder, the same prompts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.hosts import page_check, ways_check
from tests.hosts import sample_files as files
from tests.hosts.align_checks import AlignCheck
from tests.hosts.case_checks import HIRES, CaseCheck
from tests.hosts.host_cases import Name
from tests.hosts.table import Faults, Table
from tests.hosts.update_check import UpdateCheck
from tests.hosts.webui_client import Failed, Picture
from tests.hosts.webui_process import Installation, Webui

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

CONTROLS = ("a cat", "a dog, (red:1.3), [blue]", "a house BREAK a tree", "a [cat:dog:0.5] AND a castle", "")
ROUNDING = 0.05
"""Mean grey levels; another word in the prompt changes 5 and more, an embedding 9 and more."""

NOT_LOADED = "Error loading script"
WITH_LORA = "a cat <lora:ckbundle:1>"
BUNDLED = "a ckbundled"
NEW = "a cknew"

SAVE_TORCH = """
import sys, torch
g = torch.Generator().manual_seed(5)
make = lambda width, norm: torch.randn(2, width, generator=g) * norm / width ** .5
torch.save({"clip_l": make(768, .37), "clip_g": make(1280, .58)}, sys.argv[1])
"""


@dataclass
class Check:
    """One run over one installation.

    Attributes:
        what: the installation.
        data: the data folder, thrown away afterwards.
        models: family -> file name of a checkpoint.
        plain: (family, prompt) -> picture without ti_fix.
        noise: mean grey levels by which the WebUI's own pictures differ after its model was loaded anew; CPUs round
            differently where data lie differently in memory.
        refused: what the console says of scripts that the WebUI alone cannot load, as where a package is missing.
        versions: what the WebUI says of itself.
    """

    what: Installation
    data: Path
    models: dict[str, str]
    table: Table = field(default_factory=Table)
    plain: dict[tuple[str, str], Picture] = field(default_factory=dict)
    noise: float = 0.0
    refused: frozenset[str] = frozenset()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.data / "embeddings"

    def contract(self) -> None:
        """What ti_fix relies on inside the WebUI, tried in it by an extension of the tests (see `seams`)."""
        out = self.data / "seams.json"
        environment = {"TI_FIX_SEAMS": str(out), "TI_FIX_SEAMS_FILE": str(HERE / "seams.py")}
        what = replace(self.what, extensions=(*self.what.extensions, HERE / "seam_probe"), environment=environment)
        with Webui(what, self.data / "contract", self.models["sdxl"], None) as webui:
            self.versions = webui.versions()
            webui.picture("one dog")
        for statement, why in json.loads(out.read_text(encoding="utf-8")).items():
            self.table.add(f"contract: {statement}", not why, why)

    def cases(self, names: Sequence[Name]) -> CaseCheck:
        """The public reports, in a start of their own; the folder is empty at first."""
        data = self.data / "cases"
        files.lora(data / "models" / "Lora" / "cklora.safetensors", self.what.models / self.models["sdxl"])
        with Webui(self.what, data, self.models["sdxl"], ROOT) as webui:
            self.versions = webui.versions()
            cases = CaseCheck(webui, data / "embeddings", names, self.table, self.models, lora=True)
            cases.run()
        return cases

    def align(self) -> None:
        """Damaged checkpoints."""
        check = AlignCheck(self.what, self.data / "align", self.models, self.table)
        check.run()
        self.versions = check.versions

    def update(self) -> None:
        """Another release of ti_fix on disk while the WebUI runs."""
        update = UpdateCheck(self.what, self.data / "update", self.models["sdxl"], self.table)
        update.run()
        self.versions = update.versions

    def page(self, shots: Path) -> None:
        """The pages in a browser."""
        data = self.data / "page"
        shots.mkdir(parents=True, exist_ok=True)
        page_check.put(data / "embeddings", data / "models" / "Lora")
        with (
            Webui(self.what, data, self.models["sdxl"], ROOT) as webui,
            page_check.opened(webui.url) as page,
        ):
            self.versions = webui.versions()
            page_check.PageCheck(page, webui, self.models, data / "embeddings", shots, self.table).run()
            picture = ways_check.put(data / "embeddings", shots)
            ways_check.drive(page, shots, picture, self.table)

    def evaluate(self, shots: Path) -> None:
        """Attention maps, and the Evaluate page in a browser, with the small real model."""
        from tests.hosts import evaluate_check  # diffusers: seconds that the other parts need not wait for

        evaluate_check.run(self.what, self.data / "evaluate", shots, self.table, self.versions)

    def without(self) -> None:
        """How the WebUI draws by itself: with healthy files only, so that all other triggers are plain text."""
        files.put(self.folder, [s for s in files.samples() if "" in (s.label, s.sd15)])
        files.bundle(self.data / "models" / "Lora" / "ckbundle.safetensors")
        prompts = [*CONTROLS, *(f"a {s.trigger}" for s in files.samples()), NEW, BUNDLED, WITH_LORA]
        with Webui(self.what, self.data, self.models["sdxl"], None) as webui:
            for family, model in self.models.items():
                webui.options(sd_model_checkpoint=model)
                for prompt in prompts:
                    self.plain[family, prompt] = webui.picture(prompt)
            webui.options(sd_model_checkpoint=self.models["sdxl"])
            for prompt in prompts[:10]:
                self.noise = max(self.noise, webui.picture(prompt).differs(self.plain["sdxl", prompt]))
            self.plain["sdxl", "hires"] = webui.picture("a cat", **HIRES)
            self.refused = frozenset(line for line in webui.log().splitlines() if NOT_LOADED in line)
        note = f"loaded anew, it draws up to {self.noise:.1g} grey levels differently by itself" if self.noise else ""
        self.table.add("starts and draws without ti_fix", True, note)

    def with_ti_fix(self) -> None:
        """The same with ti_fix, and everything that it adds."""
        files.put(self.folder, files.samples())
        subprocess.run([self.what.python, "-c", SAVE_TORCH, self.folder / files.TORCH_FILE], check=True)
        with Webui(self.what, self.data, self.models["sdxl"], ROOT) as webui:
            self.controls(webui, "")
            self.every_sample(webui)
            self.lists(webui)
            self.bundled(webui)
            self.changes(webui)
            self.settings_page(webui)
            self.switches(webui)
            self.other_model(webui)
            self.aftermath(webui)

    def _as_plain(self, picture: Picture, prompt: str, family: str = "sdxl") -> bool:
        """Whether a picture is that of the WebUI alone."""
        return self._same(picture, self.plain[family, prompt])

    def _same(self, one: Picture, other: Picture) -> bool:
        """Whether two pictures are the same, pixel for pixel; up to rounding where the WebUI alone rounds anew."""
        return one.differs(other) <= (max(ROUNDING, self.noise) if self.noise else 0)

    def controls(self, webui: Webui, when: str) -> None:
        """Prompts without a trigger, without and with a LoRA, and with a hires pass."""
        prompts = (*CONTROLS, WITH_LORA)
        with self.table.row(f"{when}prompts without a trigger draw the same as without ti_fix") as faults:
            for prompt in prompts:
                picture = webui.picture(prompt)
                faults.unless(self._as_plain(picture, prompt), repr(prompt))
                faults.unless("TI Fix" not in picture.infotext, f"{prompt!r}: infotext names ti_fix")
            faults.unless(self._as_plain(webui.picture("a cat", **HIRES), "hires"), "hires")

    def every_sample(self, webui: Webui) -> None:
        """Each file of the folder."""
        for sample in files.samples():
            name = next(iter(sample.files), files.TORCH_FILE)
            how = {None: "refused, its name stays plain text", "": "healthy, as without ti_fix"}
            with self.table.row(f"{name}: {how.get(sample.label, f'usable, {sample.label}')}") as faults:
                self._sample(webui, sample.trigger, "sdxl", sample.label, faults)
                lines = webui.log().splitlines()
                said = any(sample.trigger in line and sample.says in line for line in lines)
                faults.unless(said or not sample.says, f"the console does not say {sample.says!r}")

    def _sample(self, webui: Webui, trigger: str, family: str, label: str | None, faults: Faults) -> None:
        """One trigger: plain text (None), the WebUI's own doing (empty), or ours with its label in the infotext."""
        prompt = f"a {trigger}"
        picture = webui.picture(prompt)
        if not label:
            faults.unless(self._as_plain(picture, prompt, family), f"{prompt!r} changed")
            faults.unless("TI Fix" not in picture.infotext, f"{prompt!r}: infotext names ti_fix")
            return
        changed = picture.differs(self.plain[family, prompt])
        faults.unless(changed > 1, f"{prompt!r} is plain text")
        said = f"{trigger}: {label}" in picture.infotext or label == "opened"  # the WebUI may open it by itself
        faults.unless(said, f"infotext lacks {label!r}: {picture.infotext[-160:]}")

    def lists(self, webui: Webui) -> None:
        """The WebUI's own list of embeddings."""
        with self.table.row("the WebUI lists what prompts can use, and nothing else") as faults:
            listed = webui.loaded()
            for sample in files.samples():
                usable = sample.label is not None
                faults.unless(usable == (sample.trigger in listed), f"{sample.trigger} is {'not ' * usable}listed")

    def bundled(self, webui: Webui) -> None:
        """An embedding inside a LoRA."""
        with self.table.row("an embedding inside a LoRA works while the LoRA is in the prompt") as faults:
            faults.unless(self._as_plain(webui.picture(BUNDLED), BUNDLED), "it works without the LoRA")
            active = webui.picture(f"{BUNDLED} <lora:ckbundle:1>")
            faults.unless(active.differs(self.plain["sdxl", BUNDLED]) > 1, "it is plain text")
            webui.picture("a cat")  # the WebUI takes a LoRA out with the next prompt
            faults.unless(self._as_plain(webui.picture(BUNDLED), BUNDLED), "it stays afterwards")

    def changes(self, webui: Webui) -> None:
        """Files that come, change and go while the WebUI runs."""
        new = self.folder / "cknew.safetensors"
        deep = self.folder / "sub" / "deeper" / "cksub.safetensors"
        with self.table.row("a new file is usable in the next picture") as faults:
            files.write(new, files.pair("n1"))
            first = self._soon(webui, NEW)
            faults.unless(first.differs(self.plain["sdxl", NEW]) > 1, "plain text")
        with self.table.row("a file that is overwritten in place is seen in the next picture") as faults:
            files.write(new, files.pair("n2"))
            faults.unless(self._soon(webui, NEW).differs(first) > 1, "the old picture")
        with self.table.row("a file that is overwritten in a sub-folder is seen in the next picture") as faults:
            before = webui.picture("a cksub")
            files.write(deep, files.extra("sub2"))
            faults.unless(self._soon(webui, "a cksub").differs(before) > 1, "the old picture")
        with self.table.row("a file that is gone is plain text again") as faults:
            new.unlink()
            faults.unless(self._as_plain(self._soon(webui, NEW), NEW), "still used")
        with self.table.row("the WebUI's refresh of embeddings works") as faults:
            files.write(deep, files.extra("sub"))
            webui.post("/sdapi/v1/refresh-embeddings", {})
            faults.unless(self._same(self._soon(webui, "a cksub"), before), "another picture")

    def _soon(self, webui: Webui, prompt: str) -> Picture:
        time.sleep(1)  # ti_fix looks at a folder at most every few hundredths of a second
        return webui.picture(prompt)

    def settings_page(self, webui: Webui) -> None:
        """The settings page, and pictures after "Reload UI"."""
        with self.table.row("the settings page has the section") as faults:
            have = webui.components()
            for name in ("enabled", "sd15", "log"):
                faults.unless(f"setting_ti_fix_{name}" in have, f"{name} is missing")
        with self.table.row("Reload UI"):
            webui.reload_page()
        self.controls(webui, "after Reload UI: ")
        with self.table.row("after Reload UI: repaired files work") as faults:
            for sample in files.samples()[:3]:
                self._sample(webui, sample.trigger, "sdxl", sample.label, faults)

    def switches(self, webui: Webui) -> None:
        """The main setting, and what to do with SD1.5 files."""
        on = {prompt: webui.picture(prompt) for prompt in CONTROLS}
        webui.options(ti_fix_enabled=False)
        with self.table.row("switched off and on in one run: prompts without a trigger are pixel-identical") as faults:
            for prompt in CONTROLS:
                faults.unless(webui.picture(prompt).equals(on[prompt]), repr(prompt))
        with self.table.row("switched off: broken files are plain text again, healthy ones work") as faults:
            for prompt in ("a ckhealthy", "a ckrenamed", "a cksd15"):
                faults.unless(self._as_plain(webui.picture(prompt), prompt), repr(prompt))
        webui.options(ti_fix_enabled=True)
        with self.table.row("SD1.5 files: convert, skip, L only") as faults:
            converted = webui.picture("a cksd15")
            faults.unless("cksd15: converted" in converted.infotext, "convert: infotext")
            webui.options(ti_fix_sd15="skip")
            skipped = webui.picture("a cksd15")
            faults.unless(self._as_plain(skipped, "a cksd15"), "skip: not plain text")
            webui.options(ti_fix_sd15="L only")
            neutral = webui.picture("a cksd15")
            faults.unless("cksd15: L only" in neutral.infotext, "L only: infotext")
            faults.unless(neutral.differs(skipped) > 1, "L only: plain text")
            webui.options(ti_fix_sd15="convert")
            faults.unless(self._same(webui.picture("a cksd15"), converted), "convert: another picture than before")

    def other_model(self, webui: Webui) -> None:
        """SD1.5 and back, twice, with both models kept in memory where the WebUI can do that."""
        if "sd15" not in self.models:
            self.table.add("switch to SD1.5 and back", True, "not checked: there is no SD1.5 checkpoint")
            return
        before = {s.trigger: webui.picture(f"a {s.trigger}") for s in files.samples()}
        with contextlib.suppress(Failed):  # Forge has no such option
            webui.options(sd_checkpoints_limit=2)
        for turn in ("first", "second"):
            webui.options(sd_model_checkpoint=self.models["sd15"])
            with self.table.row(f"SD1.5, {turn} time: every file") as faults:
                for sample in files.samples():
                    self._sample(webui, sample.trigger, "sd15", sample.sd15, faults)
            with self.table.row(f"SD1.5, {turn} time: prompts without a trigger") as faults:
                for prompt in CONTROLS:
                    faults.unless(self._as_plain(webui.picture(prompt), prompt, "sd15"), repr(prompt))
            webui.options(sd_model_checkpoint=self.models["sdxl"])
            with self.table.row(f"back to SDXL, {turn} time: the same pictures as before") as faults:
                for trigger, picture in before.items():
                    faults.unless(self._same(webui.picture(f"a {trigger}"), picture), trigger)

    def aftermath(self, webui: Webui) -> None:
        """What is left behind."""
        with self.table.row("no error of ti_fix in the console") as faults:
            lines = webui.log().splitlines()
            for words in ("ti_fix failed here", NOT_LOADED, "ti_fix_webui.py"):
                at = next((n for n, line in enumerate(lines) if words in line and line not in self.refused), None)
                faults.unless(at is None, f"{words!r} is in it: {' / '.join(lines[at or 0 :][:12])}")
        with self.table.row("no file was renamed") as faults:
            faults.extend(path.name for path in self.folder.rglob("*.corrupted"))
