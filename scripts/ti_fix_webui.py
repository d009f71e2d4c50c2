"""The only file that the WebUI executes: joins ti_fix to the host that started it.

The host puts this folder's parent on `sys.path` only while this file runs, so the package is imported here, at the
top; what is imported from it later is then found through the package.

"Apply and restart UI" runs this file again after an update but keeps the package that was imported before it. A package
that no longer matches its files is taken out first, unless something is being generated.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "ti_fix"
CACHE = PACKAGE.parent / "cache"
"""What was learned of checkpoints; may be deleted at any time."""


def files() -> list[tuple[str, int, int]]:
    """Name, size and time of each file of the package."""
    found = ((path, path.stat()) for path in sorted(PACKAGE.rglob("*.py")))
    return [(path.as_posix(), about.st_size, about.st_mtime_ns) for path, about in found]


def is_busy() -> bool:
    """Whether the WebUI generates, or a job of the extension's page runs."""
    state = getattr(sys.modules.get("modules.shared"), "state", None)
    desk = getattr(sys.modules.get("ti_fix.ui.desk"), "_desk", None)
    return bool(getattr(state, "job_count", 0) or getattr(state, "job", "") or (desk and desk.busy))


def drop_outdated() -> bool:
    """Take out an imported package that an update has replaced; False where a running job forbids it."""
    imported = sys.modules.get("ti_fix")
    if imported is None or getattr(imported, "imported_files", None) == files():
        return True
    if is_busy():
        return False
    webui = sys.modules.get("ti_fix.hosts.webui")
    if webui is not None:
        webui.uninstall()
    for name in [name for name in sys.modules if name == "ti_fix" or name.startswith("ti_fix.")]:
        del sys.modules[name]
    return True


if drop_outdated():
    import ti_fix

    ti_fix.imported_files = files()  # type: ignore[attr-defined]
    from modules import script_callbacks, scripts

    from ti_fix import api, ui
    from ti_fix.align import CHECKS, AtLoad, named_rows
    from ti_fix.convert import FastHalf
    from ti_fix.embedding import SDXL
    from ti_fix.hosts.model_hook import Watch
    from ti_fix.hosts.webui import TiFixScript, install
    from ti_fix.hosts.xyz_axis import add_axis
    from ti_fix.repair.fit import fill_missing_half
    from ti_fix.ui import settings

    half = FastHalf(CACHE, lambda embedding, words: fill_missing_half(embedding, SDXL, words)[0])
    host = install(half, tell=api.tell, watch=Watch(judge=AtLoad(CHECKS), name=named_rows))
    script_callbacks.on_before_ui(lambda: add_axis(scripts.scripts_data, host.embedding_names))
    script_callbacks.on_script_unloaded(api.clear)
    script_callbacks.on_ui_settings(lambda: settings.register(host))
    script_callbacks.on_ui_tabs(lambda: ui.build(host))
    script_callbacks.on_app_started(lambda _, app: ui.mount_api(app, host))
    __all__ = ["TiFixScript"]
else:
    logging.getLogger("ti_fix").warning("ti_fix was updated while a job runs and is off: restart the WebUI to use it.")
