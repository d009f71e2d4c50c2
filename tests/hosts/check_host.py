"""Drive an installed WebUI with and without ti_fix and print what happens; it changes nothing in the installation.

python3 run.py check-host /path/to/stable-diffusion-webui
    --python PATH       the WebUI's Python; by default the one in its venv folder
    --models FOLDER     checkpoints (.safetensors); by default its own; one for SDXL is needed, one for SD1.5 is used
    --extension FOLDER  a further extension that this installation needs; may be repeated
    -- FLAGS            further flags for the WebUI, such as --use-cpu all --no-half
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts import sample_files as files
from tests.hosts.webui_process import Failed, Installation, Picture, Webui

ROOT = Path(__file__).resolve().parent.parent.parent

CONTROLS = ("a cat", "a dog, (red:1.3), [blue]", "a house BREAK a tree", "a [cat:dog:0.5] AND a castle", "")
HIRES = {
    "enable_hr": True,
    "hr_scale": 1.5,
    "hr_upscaler": "Latent",
    "denoising_strength": 0.7,
    "hr_additional_modules": ["Use same choices"],
}

SAVE_TORCH = """
import sys, torch
g = torch.Generator().manual_seed(5)
make = lambda width, norm: torch.randn(2, width, generator=g) * norm / width ** .5
torch.save({"clip_l": make(768, .37), "clip_g": make(1280, .58)}, sys.argv[1])
"""


@dataclass
class Table:
    """What was checked."""

    rows: list[tuple[str, bool, str]] = field(default_factory=list)

    def add(self, what: str, passed: bool, note: str = "") -> None:
        """One more row, shown at once."""
        self.rows.append((what, passed, note))
        print(f"{'ok  ' if passed else 'FAIL'} {what}{'  ' + note if note else ''}", flush=True)

    @contextlib.contextmanager
    def row(self, what: str) -> Iterator[list[str]]:
        """A row that fails with whatever is put into the list, or with the WebUI's error."""
        faults: list[str] = []
        try:
            yield faults
        except Failed as error:
            faults.append(str(error)[:300])
        self.add(what, not faults, "; ".join(faults))


@dataclass
class Check:
    """One run over one installation.

    Attributes:
        what: the installation.
        data: the data folder.
        models: family -> file name of a checkpoint.
        plain: (family, prompt) -> picture without ti_fix.
    """

    what: Installation
    data: Path
    models: dict[str, str]
    table: Table = field(default_factory=Table)
    plain: dict[tuple[str, str], Picture] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.data / "embeddings"

    def without(self) -> None:
        """How the WebUI draws by itself: with the healthy file, all other triggers are plain text."""
        files.put(self.folder, [s for s in files.samples() if "" in (s.label, s.sd15)])
        files.bundle(self.data / "models" / "Lora" / "ckbundle.safetensors")
        prompts = [*CONTROLS, *(f"a {s.trigger}" for s in files.samples()), "a cknew", "a ckbundled"]
        with Webui(self.what, self.data, self.models["sdxl"], None) as webui:
            for family, model in self.models.items():
                webui.options(sd_model_checkpoint=model)
                for prompt in prompts:
                    self.plain[family, prompt] = webui.picture(prompt)
            webui.options(sd_model_checkpoint=self.models["sdxl"])
            self.plain["sdxl", "hires"] = webui.picture("a cat", **HIRES)
            self.plain["sdxl", "lora"] = webui.picture("a cat <lora:ckbundle:1>")
        self.table.add("starts and draws without ti_fix", True)

    def with_ti_fix(self) -> None:
        """The same with ti_fix, and everything that it adds."""
        files.put(self.folder, files.samples())
        subprocess.run([self.what.python, "-c", SAVE_TORCH, self.folder / files.TORCH_FILE], check=True)
        with Webui(self.what, self.data, self.models["sdxl"], ROOT) as webui:
            steps: list[tuple[str, Callable[[Webui], None]]] = [
                ("", self.controls),
                ("", self.every_sample),
                ("", self.lists),
                ("", self.bundled),
                ("", self.changes),
                ("after Reload UI: ", self.page),
                ("", self.switched_off),
                ("", self.other_model),
            ]
            for prefix, step in steps:
                if prefix:
                    self.reload(webui)
                self.prefix = prefix
                step(webui)
            self.prefix = ""
            with self.table.row("no error of ti_fix in the console") as faults:
                faults += ["'ti_fix failed here' is in the log"] if "ti_fix failed here" in webui.log() else []
                faults += ["a script failed"] if "Error loading script" in webui.log() else []
            with self.table.row("no file was renamed or changed") as faults:
                faults += [p.name for p in self.folder.rglob("*.corrupted")]

    prefix = ""

    def controls(self, webui: Webui) -> None:
        """Prompts without a trigger."""
        with self.table.row(
            f"{self.prefix}prompts without trigger are pixel-identical ({len(CONTROLS) + 2})"
        ) as faults:
            faults += [repr(p) for p in CONTROLS if webui.picture(p).pixels != self.plain["sdxl", p].pixels]
            faults += ["hires"] if webui.picture("a cat", **HIRES).pixels != self.plain["sdxl", "hires"].pixels else []
            lora = webui.picture("a cat <lora:ckbundle:1>")
            faults += ["LoRA"] if lora.pixels != self.plain["sdxl", "lora"].pixels else []

    def every_sample(self, webui: Webui) -> None:
        """Each file of the folder."""
        for sample in files.samples():
            with self.table.row(f"{self.prefix}{self._title(sample)}") as faults:
                self._sample(webui, sample, "sdxl", sample.label, faults)
                if sample.says and not any(sample.trigger in x and sample.says in x for x in webui.log().splitlines()):
                    faults.append(f"the console does not say {sample.says!r}")

    def _title(self, sample: files.Sample) -> str:
        name = next(iter(sample.files), files.TORCH_FILE)
        how = {None: "refused, stays plain text", "": "healthy, as without ti_fix"}
        return f"{name}: {how.get(sample.label, f'usable ({sample.label})')}"

    def _sample(self, webui: Webui, sample: files.Sample, family: str, label: str | None, faults: list[str]) -> None:
        prompt = f"a {sample.trigger}"
        picture = webui.picture(prompt)
        same = picture.pixels == self.plain.get((family, prompt), Picture("", "")).pixels
        says = f"{sample.trigger}: {label}" if label else ""
        if label is None or label == "":
            faults += [] if same else [f"{prompt!r} changed"]
            faults += [f"{prompt!r}: infotext names ti_fix"] if "TI Fix" in picture.infotext else []
        else:
            faults += [f"{prompt!r} is plain text"] if same else []
            noted = says in picture.infotext or (label == "opened" and "TI Fix" not in picture.infotext)
            faults += [] if noted else [f"infotext lacks {says!r}: {picture.infotext[-200:]}"]

    def lists(self, webui: Webui) -> None:
        """The WebUI's own list of embeddings."""
        with self.table.row(
            f"{self.prefix}the list of embeddings holds what prompts can use, and nothing else"
        ) as faults:
            listed = webui.loaded()
            faults += [f"lacks {s.trigger}" for s in files.samples() if s.label is not None and s.trigger not in listed]
            faults += [f"lists {s.trigger}" for s in files.samples() if s.label is None and s.trigger in listed]

    def bundled(self, webui: Webui) -> None:
        """An embedding inside a LoRA."""
        with self.table.row("an embedding inside a LoRA works while the LoRA is in the prompt") as faults:
            without, with_it = webui.picture("a ckbundled"), webui.picture("a ckbundled <lora:ckbundle:1>")
            faults += ["it is plain text"] if with_it.pixels == self.plain["sdxl", "a ckbundled"].pixels else []
            faults += ["it stays afterwards"] if without.pixels != self.plain["sdxl", "a ckbundled"].pixels else []
            again = webui.picture("a ckbundled")
            faults += ["it stays afterwards"] if again.pixels != self.plain["sdxl", "a ckbundled"].pixels else []

    def changes(self, webui: Webui) -> None:
        """Files that come, change and go while the WebUI runs."""
        new = self.folder / "cknew.safetensors"
        deep = self.folder / "sub" / "deeper" / "cksub.safetensors"
        with self.table.row("a new file is usable in the next picture") as faults:
            files.write(new, files.pair("n1"))
            first = self._soon(webui, "a cknew")
            faults += ["plain text"] if first.pixels == self.plain["sdxl", "a cknew"].pixels else []
        with self.table.row("a file that is overwritten in place is seen in the next picture") as faults:
            files.write(new, files.pair("n2"))
            faults += ["the old picture"] if self._soon(webui, "a cknew").pixels == first.pixels else []
        with self.table.row("a file that is overwritten in a sub-folder is seen in the next picture") as faults:
            before = webui.picture("a cksub")
            files.write(deep, {**files.pair("sub2"), "note": files.block(1, 1024, 1)})
            faults += ["the old picture"] if self._soon(webui, "a cksub").pixels == before.pixels else []
        with self.table.row("a file that is gone is plain text again") as faults:
            new.unlink()
            gone = self._soon(webui, "a cknew")
            faults += ["still used"] if gone.pixels != self.plain["sdxl", "a cknew"].pixels else []
        with self.table.row("the WebUI's refresh of embeddings works") as faults:
            files.write(deep, {**files.pair("sub"), "note": files.block(1, 1024, 1)})
            webui.post("/sdapi/v1/refresh-embeddings", {})
            faults += ["another picture"] if self._soon(webui, "a cksub").pixels != before.pixels else []

    def _soon(self, webui: Webui, prompt: str) -> Picture:
        time.sleep(1)  # ti_fix looks at a folder at most every few hundredths of a second
        return webui.picture(prompt)

    def reload(self, webui: Webui) -> None:
        """Press "Reload UI"."""
        with self.table.row("Reload UI"):
            webui.reload_page()

    def page(self, webui: Webui) -> None:
        """The settings page, and pictures after the reload."""
        with self.table.row(f"{self.prefix}the settings page has the section") as faults:
            have = webui.components()
            faults += [n for n in ("enabled", "sd15", "log") if f"setting_ti_fix_{n}" not in have]
        self.controls(webui)
        with self.table.row(f"{self.prefix}repaired files work") as faults:
            for sample in files.samples()[:3]:
                self._sample(webui, sample, "sdxl", sample.label, faults)

    def switched_off(self, webui: Webui) -> None:
        """The main setting, and what to do with SD1.5 files."""
        with self.table.row("switched off in the settings: as without ti_fix") as faults:
            webui.options(ti_fix_enabled=False)
            for prompt in (*CONTROLS, "a ckhealthy", "a ckrenamed", "a cksd15"):
                faults += [repr(prompt)] if webui.picture(prompt).pixels != self.plain["sdxl", prompt].pixels else []
            webui.options(ti_fix_enabled=True)
        with self.table.row("SD1.5 files: skip and L only") as faults:
            converted = webui.picture("a cksd15").pixels
            webui.options(ti_fix_sd15="skip")
            skipped = webui.picture("a cksd15").pixels
            webui.options(ti_fix_sd15="L only")
            neutral = webui.picture("a cksd15")
            webui.options(ti_fix_sd15="convert")
            faults += ["skip: not plain text"] if skipped != self.plain["sdxl", "a cksd15"].pixels else []
            faults += ["L only: plain text"] if neutral.pixels == skipped or "L only" not in neutral.infotext else []
            faults += ["convert: another picture than before"] if webui.picture("a cksd15").pixels != converted else []

    def other_model(self, webui: Webui) -> None:
        """SD1.5 and back, with both models kept in memory where the WebUI can do that."""
        if "sd15" not in self.models:
            self.table.add("switch to SD1.5 and back", True, "not checked: no SD1.5 checkpoint here")
            return
        before = {s.trigger: webui.picture(f"a {s.trigger}").pixels for s in files.samples()}
        with contextlib.suppress(Failed):
            webui.options(sd_checkpoints_limit=2)
        for turn in ("first", "second"):
            webui.options(sd_model_checkpoint=self.models["sd15"])
            with self.table.row(f"SD1.5 ({turn} time): every file") as faults:
                for sample in files.samples():
                    if sample.sd15 is not None and sample.trigger != "castle-ti":
                        self._sample(webui, sample, "sd15", sample.sd15 or "", faults)
                changed = [p for p in CONTROLS[:3] if webui.picture(p).pixels != self.plain["sd15", p].pixels]
                faults += [f"control {p!r} changed" for p in changed]
            webui.options(sd_model_checkpoint=self.models["sdxl"])
            with self.table.row(f"back to SDXL ({turn} time): the same pictures as before") as faults:
                faults += [t for t, pixels in before.items() if webui.picture(f"a {t}").pixels != pixels]


def installation(arguments: argparse.Namespace) -> Installation:
    """What the command line says, completed by looking into the installation."""
    path = arguments.webui.resolve()
    own = [path / "venv" / "bin" / "python", path / "venv" / "Scripts" / "python.exe"]
    python = arguments.python or next((p for p in own if p.exists()), Path(sys.executable))
    models = arguments.models or path / "models" / "Stable-diffusion"
    return Installation(path, python, models, tuple(arguments.extension), tuple(arguments.flags))


def checkpoints(folder: Path) -> dict[str, str]:
    """Family -> the smallest checkpoint of it in a folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size):
        family = files.family_of(path)
        if family:
            found.setdefault(family, path.name)
    return dict(sorted(found.items(), reverse=True))


def main(arguments: list[str]) -> int:
    """Carry out a command line; 0 when all is well."""
    arguments, flags = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, flags = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="run.py check-host", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("webui", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--extension", type=Path, action="append", default=[])
    parsed = parser.parse_args(arguments)
    parsed.flags = flags
    what = installation(parsed)
    models = checkpoints(what.models)
    if not (what.path / "launch.py").exists() or "sdxl" not in models:
        print(f"{what.path} has no launch.py, or {what.models} no SDXL checkpoint (.safetensors).", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ti_fix_check_") as data:
        check = Check(what, Path(data), models)
        try:
            check.without()
            check.with_ti_fix()
        except Failed as error:
            check.table.add("the WebUI runs", False, str(error))
    failed = [row for row in check.table.rows if not row[1]]
    print(f"\n{len(check.table.rows) - len(failed)} of {len(check.table.rows)} checks passed.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
