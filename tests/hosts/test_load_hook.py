"""The hook in stand-ins of both WebUIs: every trap that docs/hosts.md names."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from tests.hosts import sample_files as files

SAMPLES = {sample.trigger: sample for sample in files.samples()}


def put(webui, *triggers):
    files.put(webui.folder, [SAMPLES[trigger] for trigger in triggers])


def save(webui, name, **tensors):
    path = webui.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def rows(n, width, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 0.02


@pytest.mark.parametrize(
    "sample", [s for s in files.samples() if s.label is not None and s.files], ids=lambda s: s.trigger
)
def test_each_usable_kind_of_file_changes_the_picture_and_is_named(start, kind, sample):
    webui, _ = start(kind)
    webui.switch("sdxl")
    without, _ = webui.generate(f"a {sample.trigger}")
    files.put(webui.folder, [sample])
    with_it, infotext = webui.generate(f"a {sample.trigger}")
    assert with_it != without
    assert infotext == ({"TI Fix": f"{sample.trigger}: {sample.label}"} if sample.label else {})


@pytest.mark.parametrize("sample", [s for s in files.samples() if s.label is None], ids=lambda s: s.trigger)
def test_each_unusable_file_stays_plain_text_and_says_why_once(start, kind, sample, caplog):
    webui, _ = start(kind)
    webui.switch("sdxl")
    without, _ = webui.generate(f"a {sample.trigger}")
    files.put(webui.folder, [sample])
    webui.generate("a cat")
    webui.switch("sdxl", checkpoint="other")
    webui.switch("sdxl")
    assert webui.generate(f"a {sample.trigger}") == (without, {})
    lines = [r.getMessage() for r in caplog.records if sample.trigger in r.getMessage()]
    assert len(lines) == 1
    assert sample.says in lines[0]
    assert not list(webui.folder.glob("*.corrupted"))


def test_a_picture_that_is_no_embedding_and_that_the_host_cannot_read_is_passed_over(start, kind):
    webui, _ = start(kind)
    (webui.folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nthe rest is missing")
    webui.switch("sdxl")
    assert not [line for line in webui.console if "broken.png" in line]


def test_the_summary_tells_each_kind_of_file_and_where_more_stands(start, kind, caplog):
    webui, _ = start(kind)
    save(webui, "sound-xq.safetensors", clip_l=rows(1, 768), clip_g=rows(1, 1280))
    save(webui, "uneven-xq.safetensors", clip_l=rows(3, 768), clip_g=rows(2, 1280))
    webui.switch("sdxl")
    told = [r.getMessage() for r in caplog.records if "Embeddings for SDXL" in r.getMessage()]
    assert told == ["Embeddings for SDXL: 1 fine as they are, 1 repaired. More on the tab TI Fix, Files."]


def test_a_healthy_file_reaches_the_hosts_own_function_and_is_its_own_object(start, kind):
    webui, _ = start(kind, hooked=False)
    put(webui, "ckhealthy")
    seen = []
    for name in [n for n in webui.modules if n.endswith("textual_inversion.textual_inversion") or "backend.text" in n]:
        module = webui.modules[name]
        if hasattr(module, "create_embedding_from_data"):
            original = module.create_embedding_from_data

            def spy(data, name, *, original=original, **where):
                made = original(data, name, **where)
                seen.append((data, where, made))
                return made

            module.create_embedding_from_data = spy
    from ti_fix.hosts import webui as adapter

    adapter.install(lambda e, v: e)
    webui.switch("sdxl")
    data, where, made = seen[-1]
    path = webui.folder / "ckhealthy.safetensors"
    assert where["filename"] == path.name
    assert os.fspath(where["filepath"]) == str(path)
    assert {k: v.shape for k, v in data.items()} == {"clip_l": (2, 768), "clip_g": (2, 1280)}
    database = webui.model.all[-1].embeddings
    assert database.word_embeddings["ckhealthy"] is made
    assert made.filename == str(path)
    assert not hasattr(made, "ti_fix")


def test_prompts_without_a_trigger_are_the_same_with_and_without(start, kind):
    webui, _ = start(kind, hooked=False)
    put(webui, "ckhealthy")
    webui.switch("sdxl")
    prompts = ["a cat", "a castle on a hill", "ck healthy", "", "a ckhealthy"]
    before = {p: webui.generate(p) for p in prompts}
    from ti_fix.hosts import webui as adapter

    adapter.install(lambda e, v: e)
    put(webui, *SAMPLES)
    webui.switch("sdxl")
    assert {p: webui.generate(p) for p in prompts} == before


def test_a_file_written_by_a_newer_torch_is_opened(start, kind, caplog):
    webui, _ = start(kind)
    webui.switch("sdxl")
    without, _ = webui.generate("a new")
    torch.save({"clip_l": rows(1, 768), "clip_g": rows(1, 1280)}, webui.folder / "cktorch.pt")
    data = (webui.folder / "cktorch.pt").read_bytes()
    assert webui.generate("a cktorch")[0] != without
    if kind == "a1111" and b".format_version" in data:
        assert "The WebUI cannot open it, ti_fix can" in caplog.text
        assert not webui.console, "no alarm of the host about a file that is used"


def test_files_that_change_are_seen_in_the_next_picture(start, kind):
    webui, _ = start(kind)
    webui.switch("sdxl")
    plain_text, _ = webui.generate("a cknew")
    path = save(webui, "sub/cknew.safetensors", clip_l=rows(1, 768), clip_g=rows(1, 1280))
    first, _ = webui.generate("a cknew")
    save(webui, "sub/cknew.safetensors", clip_l=rows(1, 768, 1), clip_g=rows(1, 1280, 1))
    os.utime(path, ns=(1, 1))
    second, _ = webui.generate("a cknew")
    path.unlink()
    assert len({plain_text, first, second}) == 3
    assert webui.generate("a cknew")[0] == plain_text


def test_nothing_is_read_again_while_nothing_changes(start, kind):
    webui, _ = start(kind)
    put(webui, "ckhealthy", "ckrenamed")
    webui.switch("sdxl")
    webui.generate("a cat")
    databases = {id(e.embeddings): e.embeddings for e in webui.model.all}.values()
    loads = [d.loads for d in databases]
    for _ in range(3):
        webui.generate("a ckrenamed")
    assert [d.loads for d in databases] == loads


def test_a_refresh_brings_the_new_picture_and_not_the_remembered_one(start, kind):
    webui, host = start(kind)
    put(webui, "ckrenamed")
    webui.switch("sdxl")
    before, _ = webui.generate("a ckrenamed")
    save(webui, "ckrenamed.safetensors", text_encoders_0=rows(1, 768, 5), text_encoders_1=rows(1, 1280, 5))
    host.refresh_embeddings()
    for encoder in webui.model.all:
        assert encoder.embeddings.word_embeddings["ckrenamed"].vectors == 1
    assert webui.generate("a ckrenamed")[0] != before


def test_a_switch_to_a_model_still_in_memory_brings_the_right_widths(start):
    webui, _ = start("a1111")
    put(webui, "ckrenamed", "cksd15")
    webui.switch("sdxl")
    xl, _ = webui.generate("a ckrenamed")
    webui.switch("sd15", cached=True)
    assert webui.generate("a ckrenamed")[1] == {"TI Fix": "ckrenamed: clip_l half"}
    assert webui.generate("a cksd15")[1] == {}
    webui.switch("sdxl", cached=True)
    assert webui.generate("a ckrenamed") == (xl, {"TI Fix": "ckrenamed: repaired"})


def test_without_the_hook_the_stand_in_has_that_fault(start):
    webui, _ = start("a1111", hooked=False)
    put(webui, "ckhealthy")
    webui.switch("sdxl")
    webui.switch("sd15", cached=True)
    webui.database.word_embeddings["ckhealthy"].vec.pop("clip_l")
    with pytest.raises(KeyError):
        webui.generate("a ckhealthy")


def test_the_missing_half_is_made_at_first_use_from_the_loaded_tables(start, kind):
    webui, host = start(kind)
    asked = []
    complete = host.hook.completers[False]
    host.hook.completers[False] = lambda e, v: asked.append(v.tables["clip_g"].data_ptr()) or complete(e, v)
    put(webui, "cksd15")
    webui.switch("sdxl")
    webui.generate("a cat")
    assert asked == []
    first, _ = webui.generate("a cksd15")
    webui.generate("two cksd15")
    assert len(asked) == 1
    webui.switch("sdxl", checkpoint="another", in_place=kind == "a1111")
    assert webui.generate("a cksd15")[0] != first
    assert len(set(asked)) == 2


def test_a_completion_that_fails_leaves_the_host_working(start, kind, caplog):
    webui, host = start(kind)
    host.hook.completers[False] = lambda e, v: e
    put(webui, "cksd15")
    webui.switch("sdxl")
    webui.generate("a cksd15")
    assert "could not be made" in caplog.text


def test_what_we_make_can_take_part_in_training(start):
    webui, _ = start("forge")
    put(webui, "ckrenamed", "cksd15", "ckhealthy")
    webui.switch("sdxl")
    webui.generate("a ckrenamed and cksd15")
    for entry in webui.model.all[0].embeddings.word_embeddings.values():
        for block in dict(entry.vec).values():
            assert not block.is_inference(), entry.name


def test_an_ordinary_word_is_not_taken_over_by_a_converted_file(start, kind):
    webui, _ = start(kind)
    webui.switch("sdxl")
    before = webui.generate("a castle")
    put(webui, "castle-ti")
    assert webui.generate("a castle") == before
    assert webui.generate("a castle-ti")[1] == {"TI Fix": "castle-ti: converted"}


def test_a_file_that_the_host_loads_itself_keeps_its_trigger(start, kind):
    webui, _ = start(kind)
    put(webui, "ckhealthy")
    webui.switch("sdxl")
    before = webui.generate("a ckhealthy")
    for folder in ("a", "z"):
        save(webui, f"{folder}/ckhealthy.safetensors", emb_params=rows(2, 768))
    webui.switch("sdxl")
    assert webui.generate("a ckhealthy") == before


def test_names_with_prompt_syntax_and_inner_names_get_a_second_trigger(start, kind):
    webui, _ = start(kind)
    save(webui, "my:style.safetensors", text_encoders_0=rows(1, 768), text_encoders_1=rows(1, 1280))
    torch.save(
        {"<cat-toy>": rows(1, 768, 2)}, webui.folder / "learned_embeds.bin", _use_new_zipfile_serialization=False
    )
    webui.switch("sdxl")
    names = webui.model.all[0].embeddings.word_embeddings
    assert {"my:style", "my-style", "cat-toy"} <= set(names)
    assert names["my-style"].vec is names["my:style"].vec


def test_no_alias_takes_a_name_that_a_file_has(start, kind):
    webui, _ = start(kind)
    save(webui, "my-style.safetensors", clip_l=rows(1, 768), clip_g=rows(1, 1280))
    save(webui, "my:style.safetensors", text_encoders_0=rows(1, 768), text_encoders_1=rows(1, 1280))
    webui.switch("sdxl")
    assert webui.model.all[0].embeddings.word_embeddings["my-style"].filename.endswith("my-style.safetensors")


def test_lists_in_forge_show_what_prompts_can_use(start):
    webui, _ = start("forge")
    put(webui, *SAMPLES)
    save(webui, "ck21.safetensors", emb_params=rows(1, 1024))
    cards = webui.open_lists()
    assert "ck21" in cards.word_embeddings
    webui.switch("sdxl")
    webui.generate("a cat")
    usable = {s.trigger for s in SAMPLES.values() if s.label is not None and s.files} | {"ckpair_clip_g"}
    assert set(cards.word_embeddings) == usable
    assert "ck21" in cards.skipped_embeddings
    assert all(isinstance(e.filename, str) and e.hash for e in cards.word_embeddings.values())


def test_an_embedding_inside_a_lora_works_while_the_lora_is_in_the_prompt(start, tmp_path):
    webui, _ = start("forge")
    webui.switch("sdxl")
    before, _ = webui.generate("a ckbundled")
    lora = tmp_path / "lora.safetensors"
    files.bundle(lora)
    webui.active_loras = [lora]
    assert webui.generate("a ckbundled")[0] != before
    webui.active_loras = []
    assert webui.generate("a ckbundled")[0] == before


def test_what_a_lora_carries_is_repaired_where_the_host_loads_it(start):
    webui, _ = start("a1111")
    webui.switch("sdxl")
    make = webui.modules["modules.textual_inversion.textual_inversion"].create_embedding_from_data
    swapped = make({"clip_l": rows(2, 1280), "clip_g": rows(2, 768)}, "x", filename="lora.safetensors/x")
    assert swapped.shape == 2048
    assert swapped.vec["clip_l"].shape == (2, 768)
    converted = make({"string_to_param": {"*": rows(3, 768)}}, "y", filename="lora.safetensors/y")
    assert (converted.shape, converted.vectors, converted.name) == (2048, 3, "y")
    healthy = {"clip_l": rows(2, 768), "clip_g": rows(2, 1280)}
    assert make(healthy, "z", filename="lora.safetensors/z").vec["clip_l"].data_ptr() == healthy["clip_l"].data_ptr()
    with pytest.raises(ValueError, match="cannot identify"):
        make({"alpha": 4}, "w", filename="lora.safetensors/w")
