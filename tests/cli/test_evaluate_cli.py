"""``ti-fix evaluate`` and ``ti-fix heatmap`` on the tiny models: what is asked, made, written and refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.evaluate.standin import Judge
from tests.hosts.tiny_models import tiny_sdxl
from ti_fix.cli import evaluate as command
from ti_fix.cli import heatmap, judging, main, sides
from ti_fix.embedding import Embedding
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel

WIDTHS = (("clip_l", 768), ("clip_g", 1280))


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder with an embedding, pictures and captions; tiny model, stand-in judge."""
    save_file(
        {k: torch.randn(2, w) * 0.02 for k, w in (("clip_l", 768), ("clip_g", 1280))}, tmp_path / "mycat.safetensors"
    )
    (tmp_path / "photos").mkdir()
    for number in range(3):
        noise = np.random.RandomState(number).randint(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "photos" / f"{number}.png")
        (tmp_path / "photos" / f"{number}.txt").write_text("a red thing")
    host = StandaloneHost(StandaloneModel(tiny_sdxl()), fit=_narrow)
    for module in (sides, heatmap):
        monkeypatch.setattr(module, "open_host", lambda _: host)
        monkeypatch.setattr(module, "widths_of", lambda _: type("W", (), {"fit": staticmethod(_narrow)}))
    monkeypatch.setattr(command, "judge_of", lambda _: Judge())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _narrow(embedding: Embedding) -> Embedding:
    return embedding.with_vectors({k: v[:, :64] for k, v in embedding.vectors.items()})


SHORT = ["--width", "64", "--height", "64", "--steps", "1", "--seeds", "2", "--model", "m"]


def test_an_embedding_is_compared_and_reported(world, capsys):
    words = ["evaluate", "mycat.safetensors", *SHORT, "--references", "photos", "--class-word", "cat"]
    assert main([*words, "--prompts", "a red [name]", "--as-stored", "--json", "--out", "report"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [side["label"] for side in told["sides"]] == ["mycat", "as stored", "class word “cat”", "without"]
    assert told["references"] == 3 and told["sides"][0]["probes"]["order"] > 0
    assert told["differences"]["as stored"]["clip_i"]["mean"] == 0  # a healthy file needs no repair
    report = (world / "report" / "report.html").read_text()
    assert "data:image/jpeg" in report and json.loads((world / "report" / "report.json").read_text()) == told
    assert "| mycat |" in (world / "report" / "report.md").read_text()
    assert len(list((world / "report" / "pictures").glob("0-mycat-*.png"))) == 2


def test_a_converted_embedding_is_compared_with_its_original_on_the_originals_model(world, monkeypatch, capsys):
    opened = []
    host = StandaloneHost(StandaloneModel(tiny_sdxl()), fit=_narrow)
    monkeypatch.setattr(sides, "open_host", lambda arguments: opened.append(arguments.model) or host)
    words = ["evaluate", "mycat.safetensors", *SHORT, "--prompts", "[name]", "--json"]
    assert main([*words, "--original", "mycat.safetensors", "--original-model", "folder/old"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert opened == ["m", "folder/old"] and told["sides"][-1]["label"] == "original on old"
    assert told["sides"][-1]["probes"] is None  # its text encoders are another model's


def test_the_subject_is_found_by_its_map_where_the_references_have_masks(world, capsys):
    for number in range(3):
        Image.new("L", (24, 24), 255).save(world / "photos" / f"{number}-mask.png")
    words = ["evaluate", "mycat.safetensors", *SHORT, "--references", "photos", "--prompts", "a [name]", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["references"] == 3 and told["sides"][0]["scores"]["masked_clip_i"]["n"] == 2
    assert "masked_clip_i" not in told["sides"][1]["scores"]  # without the embedding no word calls the subject


def test_an_earlier_report_is_set_beside_one_of_the_same_judge_only(world, monkeypatch, capsys):
    words = ["evaluate", "--pictures", "photos"]
    assert main([*words, "--out", "report"]) == 0
    assert main([*words, "--earlier", "report/report.json"]) == 0
    assert "photos, clip_iqa: 1.000 earlier, 1.000 now" in capsys.readouterr().out
    monkeypatch.setattr(command, "judge_of", lambda _: Judge("another"))
    assert main([*words, "--earlier", "report/report.json"]) == 2
    assert "different judges" in capsys.readouterr().err


def test_the_steps_of_a_run_are_compared_with_curves_and_the_vectors_way(world, capsys):
    run = world / "mycat.training"
    run.mkdir()
    for step in (10, 20):
        save_file({k: torch.randn(2, w) * 0.02 for k, w in WIDTHS}, run / f"mycat-{step}.safetensors")
    (run / "log.csv").write_text("step,smooth_loss,fixed_loss\n0,,0.5\n10,0.4,\n20,0.3,0.2\n")
    words = ["evaluate", "mycat.safetensors", *SHORT, "--prompts", "[name]", "--run", str(run), "--out", "report"]
    assert main(words) == 0
    report = (world / "report" / "report.html").read_text()
    assert "step 10" in report and "Best step" in report
    assert "<h2>Training</h2>" in report or "matplotlib" in report
    assert "Best step" in capsys.readouterr().out


def test_finished_pictures_are_scored_without_a_model(world, capsys):
    words = ["evaluate", "--pictures", "mine=photos", "photos", "--references", "photos"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [side["label"] for side in told["sides"]] == ["mine", "photos"]
    assert told["differences"]["photos"]["clip_t"]["mean"] == 0
    assert main([*words, "--prompts", "one", "two"]) == 2
    assert "3 pictures for 2 prompts" in capsys.readouterr().err


def test_training_pictures_are_looked_through(world, capsys):
    Image.open("photos/0.png").save("photos/again.png")
    assert main(["evaluate", "--dataset", "photos", "--out", "report"]) == 0
    said = capsys.readouterr().out
    assert "one picture: 0.png, again.png" in said and "caption similarity" in said
    assert "again.png" in (world / "report" / "dataset.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate"], "name an embedding and a model"),
        (["evaluate", "missing.safetensors", "--model", "m"], "no file or folder"),
        (["evaluate", "mycat.safetensors", *SHORT, "--prompts", "a cat"], r"[name]"),
        (["evaluate", "mycat.safetensors", *SHORT, "--references", "nowhere"], "is no folder"),
        (["evaluate", "mycat.safetensors", *SHORT, "--run", "photos"], "no embeddings of steps"),
        (["evaluate", "mycat.safetensors", *SHORT, "--original", "mycat.safetensors"], "--original-model"),
        (["evaluate", "--dataset", "nowhere"], "is no folder"),
    ],
)
def test_what_is_missing_is_said(world, words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_without_a_judge_the_offers_are_listed(world, monkeypatch, capsys):
    monkeypatch.setattr(command, "judge_of", judging.judge_of)
    monkeypatch.setattr(judging, "interrogator_file", lambda _: None)
    assert main(["evaluate", "--pictures", "photos"]) == 2
    said = capsys.readouterr().err
    assert "890 MB, licence MIT" in said and "--download" in said


def test_a_prompts_maps_are_drawn_and_told(world, capsys):
    words = ["heatmap", "a red mycat on a beach", "--model", "m", "--embeddings", "mycat.safetensors"]
    words += [
        "--width",
        "96",
        "--height",
        "64",
        "--steps",
        "1",
        "--pictures",
        "2",
        "--groups",
        "--json",
        "--out",
        "maps",
    ]
    assert main(words) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert [each["word"] for each in first["words"]] == ["mycat", "red", "beach"]
    assert {each["word"] for each in first["groups"]} == {"colour", "scene"} and second["picture"] == 1
    with Image.open(world / "maps" / "00-0-mycat.png") as image:
        assert image.size == (96, 64)
    assert main([*words[:-3], "--words", "dragon"]) == 2
    assert "'dragon' is not in the prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--steps", "0"], "0 is too few"),
        (["--pictures", "0"], "0 is too few"),
        (["--width", "-8"], "-8 is too few"),
        (["--first", "0.5", "--last", "0.5"], "From be below Until"),
    ],
)
def test_maps_of_nothing_are_refused(world, capsys, given, said):
    assert main(["heatmap", "a red thing", "--model", "m", "--width", "64", "--height", "64", *given]) == 2
    assert said in capsys.readouterr().err


def test_a_prompt_without_a_word_that_means_something(world, capsys):
    assert main(["heatmap", "of the", "--model", "m"]) == 2
    assert "name those to follow with --words" in capsys.readouterr().err


def test_folders_are_read_as_training_reads_them(tmp_path):
    Image.new("RGBA", (32, 32)).save(tmp_path / "a.png")
    Image.new("L", (32, 32), 255).save(tmp_path / "a-masklabel.png")
    (tmp_path / "a.caption").write_text("un café\nà midi", encoding="utf-16")
    Image.new("RGB", (32, 32)).save(tmp_path / "a-masked-ball.png")
    Image.new("RGB", (32, 32)).save(tmp_path / "b.tif")
    ball, picture, other = judging.pictures_in(tmp_path)
    assert (ball.name, picture.name, other.name) == ("a-masked-ball.png", "a.png", "b.tif")
    assert judging.opened(picture).getpixel((0, 0)) == (255, 255, 255)  # what is transparent is drawn on white
    assert judging.mask_beside(picture).mode == "L" and judging.mask_beside(ball) is None
    assert (judging.caption_of(picture), judging.caption_of(ball)) == ("un café à midi", "")


def test_a_picture_that_ends_too_early_is_told_and_no_fault(world, capsys):
    whole = (world / "photos" / "1.png").read_bytes()
    (world / "photos" / "1.png").write_bytes(whole[:25] + b"\0" * 20 + whole[45:])
    assert main(["evaluate", "--dataset", "photos"]) == 2
    assert "1.png cannot be read" in capsys.readouterr().err
