"""What the page, the API and the script ask of the WebUI that runs us, whichever of the two kinds it is.

Nothing here loads a model: `shared.sd_model` would do that in AUTOMATIC1111, `sd_models.model_data.sd_model` does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from modules import call_queue, processing, prompt_parser, script_callbacks, scripts, shared

from ti_fix.additions import Event
from ti_fix.embedding import SD15, Embedding, Family, Vocabulary
from ti_fix.hosts.bundle_hook import BundleHook
from ti_fix.hosts.console import open_console
from ti_fix.hosts.entries import label_of
from ti_fix.hosts.environment import machine
from ti_fix.hosts.host_model import LoadedModel
from ti_fix.hosts.kind import Kind
from ti_fix.hosts.lazy import Complete
from ti_fix.hosts.load_hook import LoadHook, Policy, quietly, user_policy
from ti_fix.hosts.model_hook import ModelHook, Watch
from ti_fix.protocols import Host
from ti_fix.text_model import TextModel

T = TypeVar("T")
Tell = Callable[[Event], object]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
PROMPT_CACHES = ("cached_c", "cached_uc", "cached_hr_c", "cached_hr_uc")
SECTION = ("ti_fix", "TI Fix")
INFOTEXT = "TI Fix"


class WebuiHost:
    """The WebUI that runs us; what the page and the API receive.

    Args:
        kind: `a1111.A1111` or `forge.Forge`.
        complete: makes the half that an embedding lacks, from the tables of the loaded model.
        tell: hears of each file and embedding; raises nothing.
        watch: looks at models as they are loaded.
    """

    def __init__(self, kind: Kind, complete: Complete, tell: Tell, watch: Watch | None = None) -> None:
        self._kind = kind
        self._holds_queue = threading.local()
        self._used: frozenset[str] = frozenset()
        self.hook = LoadHook(kind, complete=complete, policy=policy, forget_prompts=forget_prompts, tell=tell)
        self._bundles = BundleHook(self.hook)
        self._models = ModelHook(self.hook, watch)
        self._training: Host | None = None

    @property
    def name(self) -> str:
        """``AUTOMATIC1111`` or ``Forge``, for the page."""
        return self._kind.name

    @property
    def embedding_folders(self) -> list[Path]:
        """The folders that prompts take embeddings from; one, where ``--embeddings-dir`` points."""
        return [Path(shared.cmd_opts.embeddings_dir)]

    @property
    def lora_folders(self) -> list[Path]:
        """The folders with LoRAs, which may carry embeddings; none where the LoRA extension is switched off."""
        named = (getattr(shared.cmd_opts, option, None) for option in ("lora_dir", "lyco_dir_backcompat"))
        return [path for path in map(Path, filter(None, named)) if path.is_dir()]

    def family(self) -> Family | None:
        """The family of the model that is loaded now; None while none is. Never loads one."""
        return self._kind.family()

    def picture_size(self) -> int:
        """Pixels along the side of the squares that the loaded model is made for; SDXL's where none is loaded."""
        return 512 if self.family() == SD15 else 1024

    def vocabulary(self) -> Vocabulary | None:
        """The token tables of the model that is loaded now; None while none is. Never loads one."""
        return self._kind.vocabulary()

    def text_model(self) -> TextModel | None:
        """The text side of the model that is loaded now; None while none is. Never loads one."""
        return self._models.text_model()

    def extra_rows(self) -> list[Embedding]:
        """The rows of its token tables beyond CLIP's vocabulary."""
        return self._models.rows()

    def seen_at_load(self) -> Any | None:
        """What the judge saw when that model was loaded; None where it was not asked."""
        return self._models.seen_at_load()

    def environment(self) -> list[tuple[str, str]]:
        """Names and values of what the model runs on."""
        return [*machine(), *self._kind.environment()]

    def install(self) -> None:
        """Hook us in, until `uninstall`; a second call changes nothing."""
        quietly(self.hook.install, None)
        quietly(self._models.install, None)
        model = quietly(self._kind.model, None)
        if model is not None:  # the page was reloaded
            self.model_loaded(model)

    def uninstall(self) -> None:
        """Take everything of ours out of the WebUI and out of its models."""
        self.hook.uninstall()
        quietly(self._models.uninstall, None)

    def model_loaded(self, model: Any) -> None:
        """The WebUI has loaded a model."""
        quietly(lambda: self._models.loaded(model), None)

    def embedding_names(self) -> list[str]:
        """What prompts can call now, in order."""
        return sorted({name for database in self._kind.databases() for name in database.word_embeddings})

    def refresh_embeddings(self) -> None:
        """Make new and changed files usable in the next prompt, and forget the prompts that were encoded without them.

        Without a loaded model only the lists are read again. Waits for a running generation; call it from a worker
        thread.
        """
        self.run(self.hook.refresh)

    def used_in_last_image(self) -> frozenset[str]:
        """Names (as the host lists them) of the embeddings that the last generation's prompts called."""
        return self._used

    def run(self, work: Callable[[], T]) -> T:
        """Do model work while no generation runs, in this thread, and return its result.

        Takes the host's queue lock, which is not re-entrant; a call from within `work` is carried out at once.
        """
        if getattr(self._holds_queue, "yes", False):
            return work()
        with call_queue.queue_lock:
            self._holds_queue.yes = True
            try:
                return work()
            finally:
                self._holds_queue.yes = False

    def interrupted(self) -> bool:
        """Whether the user has pressed Interrupt or Stop."""
        state: Any = shared.state
        return bool(state.interrupted or getattr(state, "stopping_generation", False))

    def training_host(self) -> Host:
        """The WebUI as training asks for it; nothing is loaded before its `model()` is called."""
        from ti_fix.hosts.training_host import TrainingHost

        if self._training is None:
            self._training = TrainingHost(self, forget_prompts)
        return self._training

    def load_model(self) -> LoadedModel:
        """The selected model for training; the caller holds the queue.

        Raises:
            TiFixError: there is none, or it cannot be trained with.
        """
        return self._kind.load_model()

    def fit(self, embedding: Embedding) -> Embedding:
        """As it is: the WebUI's models have the usual widths."""
        return embedding

    publish = fit

    @property
    def captioners(self) -> list[Any]:
        """The WebUI's interrogators."""
        from ti_fix.hosts.captioners import captioners

        return quietly(captioners, [])

    @property
    def clip_folders(self) -> list[Path]:
        """Where Interrogate keeps its CLIP (``--clip-models-path``), beside that package's own cache."""
        named = getattr(shared.cmd_opts, "clip_models_path", None)
        return [Path(named)] if named else []

    def loading(self) -> bool:
        """False: the WebUI shows that itself, and loads at the first picture."""
        return False

    def judge(self) -> None:
        """None: its models are of the usual kind."""

    def exposed(self) -> bool:
        """Whether other computers can reach the WebUI and none of its ways in asks for a password."""
        return self._reachable() and not self.api_credentials()

    def page_exposed(self) -> bool:
        """Whether other computers can reach its page without a password: ``--api-auth`` does not close the page."""
        given = shared.cmd_opts
        closed = getattr(given, "gradio_auth", None) or getattr(given, "gradio_auth_path", None)
        return self._reachable() and not closed

    def _reachable(self) -> bool:
        """Whether it listens to others; ``--nowebui`` does unless ``--server-name`` says otherwise."""
        given = shared.cmd_opts
        server = getattr(given, "server_name", None)
        return (
            bool(server and server.lower() not in LOOPBACK)
            or any(getattr(given, flag, None) for flag in ("listen", "share", "ngrok"))
            or bool(getattr(given, "nowebui", False) and not server)
        )

    def api_credentials(self) -> list[tuple[str, str]]:
        """(user, password) pairs of ``--api-auth``, ``--gradio-auth`` and ``--gradio-auth-path``; empty: no password.

        Routes of an extension are covered by none of these; who adds routes asks for one of the pairs himself.
        """
        given = shared.cmd_opts
        listed = [getattr(given, "api_auth", None) or "", getattr(given, "gradio_auth", None) or ""]
        path = getattr(given, "gradio_auth_path", None)
        if path:
            listed += Path(path).read_text(encoding="utf8").splitlines()
        pairs = (each.strip().partition(":") for line in listed for each in line.split(","))
        return list(dict.fromkeys((user, password) for user, colon, password in pairs if user and colon))

    def add_setting(self, key: str, default: Any, label: str, help_text: str, component: Any, arguments: Any) -> None:
        """Put one setting on the WebUI's settings page.

        Args:
            key: under which the WebUI keeps the value.
            default: the value before the user has chosen one.
            label: the name of the setting.
            help_text: what it does.
            component: a Gradio class, None for the WebUI's own choice by type.
            arguments: keyword arguments for it.
        """
        about = shared.OptionInfo(default, label, component, arguments, section=SECTION)
        shared.opts.add_option(key, about.info(help_text))

    def before_conditioning(self, p: Any) -> None:
        """A generation is about to encode its prompts: see to it that the databases are up to date."""
        if self._kind.reads_by_itself or getattr(p, "do_not_reload_embeddings", False):
            return
        self.hook.before_generation()

    def note_prompts(self, p: Any) -> None:
        """Register what LoRAs of this batch carry, and write down which embeddings its prompts call."""
        self._bundles.activate()
        called = {entry.name: label_of(entry) for text in prompts_of(p) for entry in self._called_in(text)}
        self._used = frozenset(called)
        p.extra_generation_params.pop(INFOTEXT, None)
        labels = [f"{name.replace(':', '').replace(',', '')}: {label}" for name, label in called.items() if label]
        if labels:
            p.extra_generation_params[INFOTEXT] = ", ".join(labels)

    def _called_in(self, text: str) -> Iterator[Any]:
        for encoder in self._kind.encoders()[:1]:  # all know the same names
            for chunks in encoder.process_texts([text])[0]:
                for chunk in chunks:
                    yield from (fix.embedding for fix in chunk.fixes)


_installed: list[WebuiHost] = []


def kind_of_host() -> Kind:
    """The kind of WebUI that this process is, told by what it can do, not by its name."""
    if _can_import("backend.text_processing.textual_inversion"):
        from ti_fix.hosts.forge import Forge

        return Forge()
    from ti_fix.hosts.a1111 import A1111

    return A1111()


def _can_import(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # no such package, or another one of its name
        return False


def install(complete: Complete, tell: Tell = lambda _: None, watch: Watch | None = None) -> WebuiHost:
    """Hook us into the WebUI, until it unloads its scripts; later calls wake the same object again.

    Args:
        complete: makes the half that an embedding lacks.
        tell: hears of each file that is judged and each embedding that is loaded; raises nothing.
        watch: looks at models as they are loaded.
    """
    if not _installed:
        open_console()
        _installed.append(WebuiHost(kind_of_host(), complete, tell, watch))
    host = _installed[0]
    host.install()
    script_callbacks.on_model_loaded(host.model_loaded)
    script_callbacks.on_script_unloaded(host.uninstall)
    return host


def uninstall() -> None:
    """Take everything of ours out of the WebUI, for good."""
    for host in _installed:
        host.uninstall()


class TiFixScript(scripts.Script):  # type: ignore[misc]
    """The WebUI's way to tell us of its generations; it has no controls."""

    def title(self) -> str:
        """Its name in the WebUI's lists of scripts."""
        return "TI Fix"

    def show(self, is_img2img: bool) -> Any:  # noqa: ARG002 - the host's signature
        """In every tab, at every generation."""
        return scripts.AlwaysVisible

    def process(self, p: Any, *args: Any) -> None:  # noqa: ARG002 - the host's signature
        """After the model was loaded, before prompts are encoded."""
        for host in _installed:
            quietly(lambda host=host: host.before_conditioning(p), None)  # type: ignore[misc]

    def process_batch(self, p: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """After the LoRAs of a batch were applied, before its prompts are encoded."""
        for host in _installed:
            quietly(lambda host=host: host.note_prompts(p), None)  # type: ignore[misc]


def policy() -> Policy:
    """The user's settings as they stand now."""
    return user_policy(lambda key, default: getattr(shared.opts, key, default))


def forget_prompts() -> None:
    """Empty the WebUI's prompt caches in place: their keys say nothing of the contents of embeddings."""
    for kind in (processing.StableDiffusionProcessing, processing.StableDiffusionProcessingTxt2Img):
        for name in PROMPT_CACHES:
            cache = getattr(kind, name, None)
            if isinstance(cache, list):
                cache[:] = [None] * len(cache)


def prompts_of(p: Any) -> set[str]:
    """Every text that the prompts of a batch come to, with prompt editing carried out."""
    fields = ["prompts", "negative_prompts", *(("hr_prompts", "hr_negative_prompts") if hires(p) else ())]
    texts = {text for name in fields for text in getattr(p, name, None) or ()}
    steps = max(1, int(getattr(p, "steps", 1) or 1))
    return {each for text in texts for each in _edited(text, steps)}


def hires(p: Any) -> bool:
    """Whether the batch has a second pass with prompts of its own."""
    return bool(getattr(p, "enable_hr", False))


def _edited(text: str, steps: int) -> Iterable[str]:
    schedules = prompt_parser.get_learned_conditioning_prompt_schedules([text], steps)
    return [each for schedule in schedules for _, each in schedule]
