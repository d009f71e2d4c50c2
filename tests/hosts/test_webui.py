"""What the page and the API ask of a WebUI, the settings, and the script that joins it all."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.hosts import sample_files as files
from tests.hosts import standin
from ti_fix.embedding import SD15, SDXL
from ti_fix.options import options
from ti_fix.repair.on_load import Policy

ROOT = Path(__file__).resolve().parent.parent.parent


def commands(webui, **given):
    vars(webui.modules["modules.shared"].cmd_opts).update(given)


def test_the_right_kind_is_found_by_what_it_can_do(start, kind):
    _, host = start(kind)
    assert host.name == {"a1111": "AUTOMATIC1111", "forge": "Forge"}[kind]


def test_another_package_named_backend_does_not_make_a_forge(start, monkeypatch):
    monkeypatch.setitem(sys.modules, "backend", type(sys)("backend"))
    _, host = start("a1111")
    assert host.name == "AUTOMATIC1111"


def test_family_and_tables_are_those_of_the_loaded_model_and_load_none(start, kind):
    webui, host = start(kind)
    assert host.family() is None
    assert host.vocabulary() is None
    webui.switch("sdxl")
    assert host.family() is SDXL
    assert {k: v.shape for k, v in host.vocabulary().tables.items()} == {
        "clip_l": (49408, 768),
        "clip_g": (49408, 1280),
    }
    webui.switch("sd15")
    assert host.family() is SD15


def test_folders(start, kind, tmp_path):
    webui, host = start(kind)
    assert host.embedding_folders == [webui.folder]
    assert host.lora_folders == []
    commands(webui, lora_dir=str(tmp_path), lyco_dir_backcompat=str(tmp_path / "missing"))
    assert host.lora_folders == [tmp_path]


@pytest.mark.parametrize(
    ("given", "exposed"),
    [
        ({}, False),
        ({"listen": True}, True),
        ({"share": True}, True),
        ({"ngrok": "token"}, True),
        ({"server_name": "0.0.0.0"}, True),
        ({"server_name": "127.0.0.1"}, False),
        ({"nowebui": True}, True),
        ({"nowebui": True, "server_name": "localhost"}, False),
        ({"listen": True, "api_auth": "me:secret"}, False),
        ({"listen": True, "gradio_auth": "me:secret"}, False),
    ],
)
def test_exposed_is_reachable_without_a_password(start, given, exposed):
    webui, host = start("a1111")
    commands(webui, **given)
    assert host.exposed() is exposed


@pytest.mark.parametrize(
    ("given", "exposed"),
    [
        ({}, False),
        ({"listen": True}, True),
        ({"share": True, "api_auth": "me:secret"}, True),
        ({"listen": True, "gradio_auth": "me:secret"}, False),
        ({"listen": True, "gradio_auth_path": "/auth"}, False),
    ],
)
def test_a_password_for_the_api_does_not_close_the_page(start, given, exposed):
    webui, host = start("a1111")
    commands(webui, **given)
    assert host.page_exposed() is exposed


def test_credentials_come_from_all_three_places(start, tmp_path):
    webui, host = start("a1111")
    assert host.api_credentials() == []
    listed = tmp_path / "auth"
    listed.write_text("c:3,d:4:5\n\ne:6\n")
    commands(webui, api_auth="a:1", gradio_auth=" b:2 , a:1", gradio_auth_path=str(listed))
    assert host.api_credentials() == [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4:5"), ("e", "6")]


def test_run_holds_the_queue_once_even_from_within(start, kind):
    webui, host = start(kind)
    lock = webui.modules["modules.call_queue"].queue_lock
    assert host.run(lambda: host.run(lock.locked)) is True
    assert not lock.locked()
    with pytest.raises(ZeroDivisionError):
        host.run(lambda: 1 / 0)
    assert not lock.locked()


def test_interrupted(start, kind):
    webui, host = start(kind)
    assert not host.interrupted()
    webui.modules["modules.shared"].state.stopping_generation = True
    assert host.interrupted()


def test_what_the_last_image_used(start, kind):
    webui, host = start(kind)
    files.put(webui.folder, [s for s in files.samples() if s.trigger in ("ckhealthy", "cksd15")])
    webui.switch("sdxl")
    webui.generate("a ckhealthy with cksd15, CKHEALTHY")
    assert host.used_in_last_image() == {"ckhealthy", "cksd15"}
    webui.generate("a cat")
    assert host.used_in_last_image() == frozenset()


def test_a_refresh_without_a_model_loads_none(start, kind):
    webui, host = start(kind)
    host.refresh_embeddings()
    assert webui.model is None


class Page:
    """Where settings go."""

    def __init__(self):
        self.settings = {}

    def add_setting(self, key, default, label, help_text, component, arguments):
        assert label
        assert help_text
        self.settings[key] = (default, component, arguments)


@pytest.fixture
def gradio(monkeypatch):
    """The one name that the settings need of Gradio, which only the WebUIs bring along."""
    module = type(sys)("gradio")
    module.Radio = object()
    monkeypatch.setitem(sys.modules, "gradio", module)
    monkeypatch.delitem(sys.modules, "ti_fix.ui.settings", raising=False)
    return module


def test_every_setting_is_on_the_page(gradio):
    from ti_fix.ui import settings

    page = Page()
    settings.register(page)
    assert list(page.settings) == [f"ti_fix_{field.name}" for field, _ in options(Policy)]
    assert page.settings["ti_fix_sd15"] == ("convert", gradio.Radio, {"choices": ["convert", "L only", "skip"]})
    assert page.settings["ti_fix_enabled"] == (True, None, None)


def execute(package):
    """Execute the script as the WebUI does it."""
    spec = importlib.util.spec_from_file_location("ti_fix_webui.py", package.parent / "scripts" / "ti_fix_webui.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(package.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(package.parent))
    return module


@pytest.fixture
def package(tmp_path, monkeypatch, gradio):
    """An installed copy of ti_fix, the only one that can be imported."""
    import shutil

    copy = tmp_path / "extension" / "ti_fix"
    shutil.copytree(ROOT / "ti_fix", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "scripts", copy.parent / "scripts")
    for name in [n for n in sys.modules if n == "ti_fix" or n.startswith("ti_fix.")]:
        monkeypatch.delitem(sys.modules, name)
    yield copy
    for name in [n for n in sys.modules if n == "ti_fix" or n.startswith("ti_fix.")]:
        del sys.modules[name]


@pytest.fixture
def bare(tmp_path, monkeypatch, kind, package):
    """A stand-in into which nothing is hooked yet."""
    webui = standin.StandIn(kind, tmp_path / "webui")
    for name, module in webui.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return webui


def test_the_script_hooks_us_in_and_gives_the_host_its_script_class(bare, package):
    module = execute(package)
    assert issubclass(module.TiFixScript, bare.modules["modules.scripts"].Script)
    assert importlib.import_module("ti_fix.errors"), "the folder is off sys.path again"
    (add_settings,) = bare.callbacks["on_ui_settings"]
    add_settings()
    assert "ti_fix_enabled" in bare.modules["modules.shared"].opts.added


def test_the_script_mounts_the_api_on_each_new_app(bare, package):
    execute(package)
    (mount,) = bare.callbacks["on_app_started"]
    for _ in range(2):
        app = importlib.import_module("fastapi").FastAPI()
        mount(None, app)
        mount(None, app)
        paths = [route.path for route in app.routes if route.path.startswith("/ti_fix")]
        wanted = ("convert", "evaluate", "files", "inspect", "model", "refresh", "repair", "source", "tokens")
        assert {f"/ti_fix/v1/{each}" for each in wanted} <= set(paths)
        methods = [(route.path, *route.methods) for route in app.routes if route.path.startswith("/ti_fix")]
        assert len(methods) == len(set(methods)), "mounted once"


def test_what_other_extensions_added_goes_when_scripts_are_unloaded(bare, package):
    execute(package)
    api = sys.modules["ti_fix.api"]
    api.add_listener(print)
    for unloaded in bare.callbacks["on_script_unloaded"]:
        unloaded()
    assert not api.LISTENERS


def test_a_reload_of_the_page_keeps_the_package(bare, package):
    first = execute(package).TiFixScript
    assert execute(package).TiFixScript is first


def test_after_an_update_the_old_package_goes(bare, package):
    old = execute(package).TiFixScript
    loader = bare.modules["modules.textual_inversion.textual_inversion"].EmbeddingDatabase.load_from_file
    changed = package / "__init__.py"
    changed.write_text(changed.read_text().replace("0.1.0", "9.9.9"))
    assert execute(package).TiFixScript is not old
    assert sys.modules["ti_fix"].__version__ == "9.9.9"
    now = bare.modules["modules.textual_inversion.textual_inversion"].EmbeddingDatabase.load_from_file
    assert now is not loader
    assert now.__wrapped__ is loader.__wrapped__, "one wrapper, not two"


def test_while_a_job_runs_the_update_waits_and_says_so(bare, package, caplog):
    old = execute(package).TiFixScript
    os.utime(package / "errors.py", ns=(1, 1))
    bare.modules["modules.shared"].state.job = "task(1)"
    module = execute(package)
    assert not hasattr(module, "TiFixScript") or module.TiFixScript is old
    assert "restart the WebUI" in caplog.text
    assert sys.modules["ti_fix.hosts.webui"].TiFixScript is old
