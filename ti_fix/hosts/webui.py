"""What the page, the API and the script ask of the WebUI that runs us, whichever of the two kinds it is.

Nothing here loads a model: `shared.sd_model` would do that in AUTOMATIC1111, `sd_models.model_data.sd_model` does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from modules import call_queue, shared
from ti_fix.embedding import Family

T = TypeVar("T")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


class Kind(Protocol):
    """What differs between the kinds of WebUI."""

    name: str

    def family(self) -> Family | None: ...
    def refresh(self) -> None: ...


class WebuiHost:
    """The WebUI that runs us; what the page and the API receive.

    Args:
        kind: `a1111.A1111` or `forge.Forge`.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._holds_queue = threading.local()
        self._used: frozenset[str] = frozenset()

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
        """The folders with LoRAs, which may carry embeddings; none where the built-in LoRA extension is switched off."""
        named = (getattr(shared.cmd_opts, option, None) for option in ("lora_dir", "lyco_dir_backcompat"))
        return [path for path in map(Path, filter(None, named)) if path.is_dir()]

    def family(self) -> Family | None:
        """The family of the model that is loaded now; None while none is. Never loads one."""
        return self._kind.family()

    def refresh_embeddings(self) -> None:
        """Make new and changed files usable in the next prompt, and forget the prompts that were encoded without them.

        Without a loaded model only the lists are read again. Waits for a running generation; call it from a worker
        thread, never from within `run`.
        """
        self.run(self._kind.refresh)

    def used_in_last_image(self) -> frozenset[str]:
        """Names (as the host lists them) of the embeddings that the last generation's prompts called."""
        return self._used

    def note_used(self, names: frozenset[str]) -> None:
        """Remember what `used_in_last_image` answers; for the script that watches generations."""
        self._used = names

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

    def exposed(self) -> bool:
        """Whether other computers can reach the WebUI and none of its ways in asks for a password.

        ``--nowebui`` listens on every interface unless ``--server-name`` says otherwise.
        """
        given = shared.cmd_opts
        server = getattr(given, "server_name", None)
        reachable = (
            bool(server and server.lower() not in LOOPBACK)
            or any(getattr(given, flag, None) for flag in ("listen", "share", "ngrok"))
            or bool(getattr(given, "nowebui", False) and not server)
        )
        return reachable and not self.api_credentials()

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
