"""Settings, console, threads, and giving back what was borrowed: the hook in stand-ins of both WebUIs."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from safetensors.torch import save_file

from tests.hosts import sample_files as files
from ti_fix.align import CHECKS, AtLoad, named_rows

SAMPLES = {sample.trigger: sample for sample in files.samples()}


def put(webui, *triggers):
    files.put(webui.folder, [SAMPLES[trigger] for trigger in triggers])


@pytest.mark.parametrize(
    ("setting", "trigger"),
    [("enabled", "ckrenamed"), ("layouts", "ckrenamed"), ("rows", "ckuneven"), ("opening", "ckpti")],
)
def test_each_class_of_repair_can_be_switched_off_while_the_host_runs(start, setting, trigger):
    webui, _ = start("a1111")
    put(webui, trigger)
    webui.switch("sdxl")
    assert webui.generate(f"a {trigger}")[1]
    webui.modules["modules.shared"].opts.data[f"ti_fix_{setting}"] = False
    assert webui.generate(f"a {trigger}")[1] == {}
    webui.modules["modules.shared"].opts.data[f"ti_fix_{setting}"] = True
    assert webui.generate(f"a {trigger}")[1]


@pytest.mark.parametrize("enabled", [True, False])
def test_no_file_is_renamed_because_of_us(start, monkeypatch, enabled):
    webui, _ = start("forge")
    monkeypatch.setattr(torch, "load_origin", torch.load, raising=False)  # by this name hosts that rename are known
    webui.modules["modules.shared"].opts.data["ti_fix_enabled"] = enabled
    webui.switch("sdxl")
    put(webui, "cklfs", "ckempty", "cknan", "ckhealthy", "ckrenamed")
    torch.save({"x": 1}, webui.folder / "ckodd.pt")
    (webui.folder / "ckbad.pt").write_bytes(b"PK")
    before = sorted(p.name for p in webui.folder.iterdir())
    webui.switch("sdxl")
    webui.modules["modules.shared"].opts.data["ti_fix_enabled"] = not enabled
    webui.generate("a cat")
    assert sorted(p.name for p in webui.folder.iterdir()) == before
    healthy = webui.model.all[0].embeddings.word_embeddings["ckhealthy"]
    assert healthy.filename == str(webui.folder / "ckhealthy.safetensors")


def test_sd15_files_as_the_setting_says(start, kind, caplog):
    webui, _ = start(kind)
    webui.switch("sdxl")
    without, _ = webui.generate("a cksd15")
    put(webui, "cksd15")
    settings = webui.modules["modules.shared"].opts.data
    settings["ti_fix_sd15"] = "skip"
    assert webui.generate("a cksd15") == (without, {})
    assert "skipped, as the setting" in caplog.text
    settings["ti_fix_sd15"] = "L only"
    assert webui.generate("a cksd15")[1] == {"TI Fix": "cksd15: L only"}


def test_what_fails_in_us_never_reaches_the_host(start, kind, monkeypatch, caplog):
    webui, host = start(kind)
    put(webui, "ckhealthy", "ckrenamed")
    monkeypatch.setattr(host.hook, "_plan", lambda *a: 1 / 0)
    monkeypatch.setattr(host.hook, "_loading", lambda *a: 1 / 0)
    monkeypatch.setattr(host.hook, "is_stale", lambda *a: 1 / 0)
    webui.switch("sdxl")
    webui.generate("a ckhealthy")
    assert "ckhealthy" in webui.model.all[0].embeddings.word_embeddings
    assert "ZeroDivisionError" in caplog.text


def test_hooking_twice_is_hooking_once_and_unloading_gives_everything_back(start, kind):
    webui, _ = start(kind, hooked=False)
    names = ("load_from_file", "load_from_dir", "load_textual_inversion_embeddings")
    modules = [m for m in webui.modules.values() if hasattr(m, "EmbeddingDatabase")]

    from ti_fix.hosts import webui as adapter
    from ti_fix.hosts.model_hook import Watch

    watch = Watch(judge=AtLoad(CHECKS), name=named_rows)
    readers = adapter.kind_of_host().readers

    def functions():
        return (
            [getattr(m.EmbeddingDatabase, n) for m in modules for n in names]
            + [m.create_embedding_from_data for m in modules]
            + [getattr(owner, name) for owner, name in readers]
        )

    before = functions()
    adapter.install(lambda e, v: e, watch=watch)
    hooked = functions()
    assert not set(hooked) & set(before)
    adapter.install(lambda e, v: e, watch=watch)
    assert functions() == hooked
    for unloaded in webui.callbacks["on_script_unloaded"]:
        unloaded()
    assert functions() == before


def test_a_wrapper_that_another_extension_put_over_ours_survives(start):
    webui, host = start("a1111")
    database = webui.modules["modules.textual_inversion.textual_inversion"].EmbeddingDatabase
    ours = database.load_from_file
    calls = []

    def theirs(self, path, filename):
        calls.append(filename)
        return ours(self, path, filename)

    database.load_from_file = theirs
    host.hook.uninstall()
    assert database.load_from_file is theirs
    put(webui, "ckrenamed")
    webui.switch("sdxl")
    assert calls == ["ckrenamed.safetensors"]
    assert webui.generate("a ckrenamed")[1] == {}
    host.hook.install()
    assert webui.generate("a ckrenamed")[1] == {"TI Fix": "ckrenamed: repaired"}


def test_two_threads_may_load_at_once(start):
    webui, _ = start("a1111")
    put(webui, *SAMPLES)
    webui.switch("sdxl")
    other = webui.modules["modules.textual_inversion.textual_inversion"].EmbeddingDatabase()
    other.add_embedding_dir(str(webui.folder))
    threads = [
        threading.Thread(target=d.load_textual_inversion_embeddings, kwargs={"force_reload": True})
        for d in (webui.database, other) * 4
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    other.load_textual_inversion_embeddings(force_reload=True)
    webui.database.load_textual_inversion_embeddings(force_reload=True)
    usable = {s.trigger for s in SAMPLES.values() if s.label is not None and s.files} | {"ckpair_clip_g"}
    assert set(other.word_embeddings) == set(webui.database.word_embeddings) == usable


def test_the_summary_is_one_line_and_the_level_can_be_set(start, caplog):
    webui, _ = start("a1111")
    put(webui, *SAMPLES)
    caplog.set_level(logging.INFO, "ti_fix")
    webui.switch("sdxl")
    webui.switch("sdxl")
    summaries = [r for r in caplog.records if r.getMessage().startswith("Embeddings for SDXL")]
    assert len(summaries) == 1
    assert "7 repaired" in summaries[0].getMessage()
    webui.modules["modules.shared"].opts.data["ti_fix_log"] = "nothing"
    caplog.clear()
    save_file({"emb_params": torch.ones(1, 768)}, webui.folder / "cklate.safetensors")
    webui.generate("a cat")
    assert not caplog.records
