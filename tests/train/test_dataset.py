"""Folders, captions, templates and the report before the first step, after public bug reports."""

from __future__ import annotations

import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.cases import cases, folder
from tests.train.making import TRIGGER, codes, config, image, model, pictures, run
from ti_fix.errors import WrongUse
from ti_fix.train import StepEvent, from_images, gather, train
from ti_fix.train.captions import SUBJECT, decode_text, filled, templates, varied, words_of_name
from ti_fix.train.initial import statistics
from ti_fix.train.preflight import dump, plan

CASES = folder() / "handover"


def planned(settings, data=None):
    on = model()
    return plan(settings, on, data or gather(settings), statistics(on.vocabulary()))


def messages(work):
    return " ".join(p.finding.message for p in work.problems)


# text files


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\ufeff\r")))
def test_utf_8_is_read_back(text):
    assert decode_text(text.encode()).text == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_are_believed(encoding):
    found = decode_text("a photo of Éléonore".encode(encoding))
    assert found.text == "a photo of Éléonore" and not found.guessed


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "cp1252"])
def test_other_encodings_are_guessed_and_said_so(encoding):
    found = decode_text("the dog’s collar".encode(encoding))
    assert found.text == "the dog’s collar" and found.guessed


@given(st.binary(max_size=200))
def test_any_bytes_are_some_text(data):
    decode_text(data)


@pytest.mark.parametrize("case", ["DS_cap_utf16", "DS_cap_cp1252"])
def test_reported_captions_are_read_and_the_file_is_named(case):
    data = gather(config(name="sks", folders=(str(CASES / case),)))
    expected = {"DS_cap_utf16": "a photo of sks dog", "DS_cap_cp1252": "the dog’s collar, sks"}
    assert data.samples[0].caption == expected[case]
    for word in cases()[case]["expect"]["message_mentions"]:
        assert word in " ".join(f.message for f in data.findings)


# templates


def test_templates_are_filled():
    assert filled("a photo of [name], [filewords]", "sks", "on a beach") == "a photo of sks, on a beach"
    assert filled("[name], [filewords]", "sks", "") == "sks"


def test_template_files_of_any_encoding():
    lines, read = templates(str(CASES / "TPL_utf16" / "template.txt"))
    assert lines == ("a photo of [name], [filewords]",) and read.encoding == "utf-16"
    settings = config(template=str(CASES / "TPL_utf16" / "template.txt"))
    assert "template.txt" in messages(planned(settings, pictures()))


def test_name_alone_trains():
    settings = config(template=str(CASES / "TPL_nameonly" / "template.txt"), steps=1)
    assert any(isinstance(event, StepEvent) for event in run(settings))


def test_a_template_without_name_is_refused_unless_the_captions_have_it():
    settings = config(template=str(CASES / "TPL_noname" / "template.txt"))
    work = planned(settings, pictures(2, ["a red dog", "a blue dog"]))
    assert [f.code for f in work.errors] == ["trigger-missing"] and "[name]" in work.errors[0].message
    work = planned(settings, pictures(2, [f"{TRIGGER} in red", f"a blue {TRIGGER}"]))
    assert not work.errors and work.prompts[0] == (f"a photo of {TRIGGER} in red",)


@pytest.mark.parametrize("text", ["", "no such file.txt"])
def test_an_unusable_template_says_what_is_wanted(text):
    with pytest.raises(WrongUse, match="template"):
        templates(text)


def test_auto_takes_captions_where_they_are_and_subject_where_none():
    assert planned(config(), pictures(1)).prompts[0] == tuple(t.replace("[name]", TRIGGER) for t in SUBJECT)
    work = planned(config(), pictures(2, [f"a {TRIGGER} tree", None]))
    assert work.prompts[0] == (f"a {TRIGGER} tree",) and "caption-missing" in {p.finding.code for p in work.problems}


def test_words_of_a_file_name():
    assert words_of_name("0012-a_red_dog") == "a red dog"


@given(st.integers(0, 1000))
def test_tags_are_shuffled_and_dropped_but_never_the_name(seed):
    tags = [f"tag{i}" for i in range(6)] + [f"a {TRIGGER.upper()} tree"]
    out = varied(", ".join(tags), TRIGGER, random.Random(seed), shuffle=True, drop=0.5).split(", ")
    assert tags[-1] in out and set(out) <= set(tags) and len(out) == len(set(out))


def test_tags_stay_as_they_are_without_being_asked():
    text = "b ,a,  c"
    assert varied(text, TRIGGER, random.Random(0), shuffle=False, drop=0.0) is text
    assert varied("a, b, c", TRIGGER, random.Random(0), shuffle=False, drop=1.0) == ""


# the report before the first step


def test_captions_without_the_trigger_stop_the_run_before_it_starts():
    settings = config(name="sks", folders=(str(CASES / "DS_cap_notrigger"),))
    events = []
    with pytest.raises(WrongUse, match=r"trigger 'sks' is not in 1 of 1 captions"):
        events.extend(train(settings, model(), gather(settings)))
    assert "trigger-missing" in codes(events) and not any(isinstance(e, StepEvent) for e in events)
    (remedy,) = [e.remedy for e in events if e.finding.code == "trigger-missing"]
    fixed = config(name="sks", folders=settings.folders, **remedy)
    assert not planned(fixed).errors and planned(fixed).prompts[0] == ("sks, a brown dog on grass",)


def test_a_trigger_behind_75_tokens_is_told_and_still_learns():
    settings = config(name="sks", folders=(str(CASES / "DS_cap_long"),), steps=1, batch_size=3)
    work = planned(settings)
    assert not work.errors
    for word in cases()["DS_cap_long"]["expect"]["message_mentions"]:
        assert word in messages(work)
    found = {p.finding.code for p in work.problems}
    assert {"trigger-late", "empty-caption", "caption-missing", "caption-chunks"} <= found
    assert work.prompts[2] == ("sks dog second line (literal) [x]",)
    events = run(settings, gather(settings))
    (step,) = [e for e in events if isinstance(e, StepEvent)]
    assert min(step.gradients.values()) > 0


def test_only_unreadable_files_are_an_error_not_a_run_of_no_steps():
    settings = config(folders=(str(CASES / "DS_broken"),))
    with pytest.raises(WrongUse, match="no usable images"):
        run(settings, gather(settings))


def test_all_kinds_in_one_folder_are_used_but_the_unusable():
    settings = config(folders=(str(CASES / "DS_palette"), str(CASES / "DS_rgba"), str(CASES / "DS_exif6")))
    data = gather(settings)
    names = [s.name for s in data.samples]
    assert names == [
        "anim.webp",
        "cmyk.jpg",
        "deep16.png",
        "grey.png",
        "liar.jpg",
        "pal.png",
        "cutout.png",
        "phone.jpg",
    ]
    assert data.samples[-1].size == (64, 48)
    text = " ".join(f.message for f in data.findings)
    assert "dot.png has 1 x 1" in text and "transparent" in text and "upright" in text


def test_folders_count_as_often_as_asked(tmp_path):
    for name, count in (("one", 2), ("two", 1)):
        (tmp_path / name).mkdir()
        for i in range(count):
            image(len(name) * 10 + i + (name == "two") * 5).save(tmp_path / name / f"{i}.png")
    settings = config(folders=(str(tmp_path / "one"), f"{tmp_path / 'two'}:3"))
    work = planned(settings)
    assert [v.picture for v in work.training] == [0, 1, 2, 2, 2] and len(work.validation) == 3


@pytest.mark.parametrize("entry", ["/no/such/folder", "/no/such/folder:3"])
def test_a_missing_folder_says_so(entry):
    with pytest.raises(WrongUse, match="is no folder"):
        gather(config(folders=(entry,)))
    with pytest.raises(WrongUse, match="No folder"):
        gather(config())


def test_masks_belong_to_their_picture(tmp_path):
    image(1).save(tmp_path / "a.png")
    Image.new("L", (64, 64), 255).save(tmp_path / "a-mask.png")
    (sample,) = gather(config(folders=(str(tmp_path),))).samples
    assert sample.mask == tmp_path / "a-mask.png"
    (unmasked,) = gather(config(folders=(str(tmp_path),), masks=False)).samples
    assert unmasked.mask is None and unmasked.key != sample.key


def test_the_same_picture_twice_is_told(tmp_path):
    image(1).save(tmp_path / "a.png")
    shutil.copy(tmp_path / "a.png", tmp_path / "b.png")
    findings = gather(config(folders=(str(tmp_path),))).findings
    assert [f.code for f in findings] == ["same-picture"] and "b.png = a.png" in findings[0].message


@pytest.mark.parametrize(
    ("caption", "code"),
    [
        ("{} for sale, www.example.com", "caption-advertising"),
        ("{} donâ€™t", "caption-mojibake"),
        ("{} in\u200bvisible", "caption-invisible"),
        ("{} " + "word " * 130, "caption-long"),
    ],
)
def test_the_linter_names_what_is_wrong(caption, code):
    found = {p.finding.code for p in planned(config(), pictures(1, [caption.format(TRIGGER)])).problems}
    assert code in found


def test_good_captions_have_nothing_to_say():
    found = {
        p.finding.code for p in planned(config(), pictures(2, [f"a {TRIGGER} on a beach, café", f"{TRIGGER}"])).problems
    }
    assert found == {"rate"}


@pytest.mark.parametrize(
    ("name", "code", "severity"),
    [("a,b", "name-syntax", "error"), ("(x)", "name-syntax", "error"), ("cat", "name-ordinary", "warning")],
)
def test_names_that_prompts_cannot_call(name, code, severity):
    work = planned(config(name=name), pictures(1))
    assert (code, severity) in {(p.finding.code, p.finding.severity) for p in work.problems}


def test_rates_are_told_beside_the_vocabularys():
    work = planned(config(learning_rate="0.003"), pictures(1))
    assert "0.003, which is 0.1 times the usual size (RMS) of a number in the model's words (0.03)" in messages(work)
    assert "rate-low" in {p.finding.code for p in planned(config(learning_rate="1e-6"), pictures(1)).problems}
    assert "rate-high" in {p.finding.code for p in planned(config(learning_rate="1"), pictures(1)).problems}


def test_small_pictures_are_told():
    work = planned(config(resolution=256), pictures(1))
    assert "picture-small" in {p.finding.code for p in work.problems}


def test_a_token_dump_counts_vectors_where_the_name_stands():
    tokenize = model().vocabulary().tokenize
    found = dump(tokenize, f"a photo of {TRIGGER} and {TRIGGER}", TRIGGER, 4)
    assert (found.tokens, found.places, found.chunks) == (3 + 4 + 1 + 4, (3, 8), 1)
    assert dump(tokenize, "sea " * 80, TRIGGER, 1).chunks == 2


def test_held_out_pictures_are_not_trained_on():
    work = planned(config(hold_out=0.5), from_images([image(i) for i in range(4)]))
    assert {v.picture for v in work.training} == {0, 1} and {v.picture for v in work.validation} == {2, 3}
