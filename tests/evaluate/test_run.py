"""A comparison from pictures to sentences, with a judge and a painter whose answers are known."""

from __future__ import annotations

import json
import re

import pytest
import torch

from tests.evaluate.standin import COLOURS, EMBEDDING, Judge, flat, paint
from ti_fix.errors import WrongUse
from ti_fix.evaluate import (
    Candidate,
    EvalConfig,
    Material,
    PictureEvent,
    ReportEvent,
    ScoringEvent,
    default_candidates,
    evaluate,
    markdown,
    page,
    same_judge,
    score_pictures,
)
from ti_fix.evaluate.config import filled
from ti_fix.evaluate.verdict import best_step

CONFIG = EvalConfig(class_word="red", seeds=6, width=64, height=64, steps=1)
REFERENCES = [flat(COLOURS["red"], 50 + i) for i in range(4)]
SIDES = [
    Candidate(label="myred", word="myred", embeddings=(EMBEDDING,)),
    Candidate(label="a wrong word", word="blue"),
    Candidate(label="without", word=""),
]


def report_of(events):
    return next(e.report for e in events if isinstance(e, ReportEvent))


def run(config=CONFIG, sides=SIDES, prompts=("a [name] thing",), judge=None, **more):
    stop = more.pop("stop", lambda: False)
    material = Material(references=REFERENCES, **more)
    return list(evaluate(config, sides, prompts, judge or Judge(), generate=paint, material=material, stop=stop))


def test_every_side_gets_the_same_prompts_and_seeds():
    made = [(e.label, e.prompt, e.seed) for e in run() if isinstance(e, PictureEvent)]
    plan = [("a [name] thing", seed) for seed in range(6)]
    assert [(p, s) for label, p, s in made if label == "myred"] == plan
    assert len(made) == 18 and [e.done for e in run() if isinstance(e, PictureEvent)] == list(range(1, 19))


def test_the_right_one_is_better_and_the_sentence_says_where():
    events = run()
    report = report_of(events)
    assert [e.label for e in events if isinstance(e, ScoringEvent)] == ["myred", "a wrong word", "without"]
    scores = {side.label: side.scores for side in report.sides}
    assert scores["myred"]["clip_i"].low > scores["a wrong word"]["clip_i"].high
    assert report.differences["without"]["clip_t"].low > 0 and report.differences["without"]["clip_t"].n == 6
    assert "likeness to the references (+" in report.sentences[0] and "a wrong word" in report.sentences[0]
    assert report.ceilings["clip_i"].mean > 0.99
    assert scores["myred"]["adherence.colour"].mean > 0.5 > scores["a wrong word"]["adherence.colour"].mean


def test_pictures_that_are_equal_show_no_difference():
    twin = Candidate(label="the same", word="red")
    report = report_of(run(sides=[SIDES[0], twin]))
    assert "no difference at all" in report.sentences[0]


def test_a_judge_is_told_the_class_word_not_the_embeddings_name():
    judge = Judge()
    run(judge=judge)
    assert "a red thing" in judge.asked and not any("myred" in text for text in judge.asked)


def test_a_judge_that_is_not_independent_is_told():
    assert any("independent" in note for note in report_of(run(judge=Judge(independent=False))).notes)
    assert not report_of(run()).notes


def test_a_stop_scores_what_every_side_has():
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > 8  # in the third round

    report = report_of(run(stop=stop))
    assert {len(side.pictures) for side in report.sides} == {2} and report.plan[-1] == ("a [name] thing", 1)
    with pytest.raises(WrongUse, match="stopped before"):
        run(stop=lambda: True)


def test_a_side_may_come_from_another_model():
    other = Candidate(label="SD1.5 original", word="myred", generate=lambda r: flat(COLOURS["purple"], r.seed))
    report = report_of(run(sides=[SIDES[0], other]))
    assert report.differences["SD1.5 original"]["clip_i"].low > 0


def test_negative_embeddings_are_judged_by_what_they_change():
    config = EvalConfig(seeds=4, negative=True, width=64, height=64, steps=1)
    sides = default_candidates("blurry", EMBEDDING, "cat", negative=True)
    contexts = {"blurry": torch.ones(1, 77, 4), "": torch.zeros(1, 77, 4) + 0.5}
    encode = lambda texts: torch.cat([contexts.get(t, torch.rand(1, 77, 4)) for t in texts])  # noqa: E731
    report = report_of(run(config, sides, ("a red thing",), encode=lambda _side: encode))
    scores = report.sides[0].scores
    assert [side.label for side in report.sides] == ["blurry", "without"]
    assert scores["pixel_change"].mean > 1 and scores["image_change"].mean > 0
    assert scores["conditioning_change"].mean == pytest.approx(1.0)
    assert report.differences["without"]["clip_iqa"].high < 0
    assert any("negative embedding has no subject" in note for note in report.notes)


def test_the_best_step_of_a_run_is_named():
    words = {100: "blue", 200: "red", 300: "purple"}
    sides = [Candidate(label=f"step {n}", word=w, step=n) for n, w in words.items()]
    report = report_of(run(sides=sides))
    assert report.best == "step 200"
    assert best_step(report.sides[:1]) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": ()}, "no prompt"),
        ({"prompts": ("a thing",)}, r"has no \[name\]"),
        ({"sides": ()}, "nothing to evaluate"),
        ({"sides": [SIDES[0], SIDES[0]]}, "same label"),
        ({"config": EvalConfig(seeds=0)}, "Pictures a prompt"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(change, message):
    with pytest.raises(WrongUse, match=message):
        run(**change)


def test_a_gap_is_closed():
    assert filled("a [name] on a beach", "") == "a on a beach"
    assert filled("[name], on a beach", "") == "on a beach"
    assert filled("[name] and [name]", "cat") == "cat and cat"


def test_folders_of_pictures_are_scored_without_a_model():
    sets = {"mine": REFERENCES, "other": [flat(COLOURS["blue"], i) for i in range(4)], "few": REFERENCES[:2]}
    texts = {label: ["a red thing"] * len(pictures) for label, pictures in sets.items()}
    report = report_of(score_pictures(EvalConfig(), sets, texts, Judge(), Material(references=REFERENCES)))
    assert set(report.differences) == {"other"} and report.differences["other"]["clip_t"].low > 0
    assert any("different numbers" in note for note in report.notes)
    bare = report_of(score_pictures(EvalConfig(), {"mine": REFERENCES}, {}, Judge()))
    assert set(bare.sides[0].scores) == {"clip_iqa"}
    with pytest.raises(WrongUse, match="no picture"):
        list(score_pictures(EvalConfig(), {"mine": []}, {}, Judge()))


def test_the_report_survives_json_and_names_all_that_scores_depend_on():
    told = json.loads(json.dumps(report_of(run()).as_dict()))
    assert told["schema"] == 1 and told["judge"]["fingerprint"] == "stand-in" and told["references"] == 4
    assert told["sides"][0]["scores"]["clip_i"]["n"] == 6 and told["differences"]["without"]["clip_i"]["low"] > 0
    assert "pictures" in told["sides"][0] and isinstance(told["sides"][0]["pictures"], int)


def test_scores_of_different_judges_are_never_set_side_by_side():
    reports = [report_of(run(judge=Judge(name))).as_dict() for name in ("one", "other")]
    with pytest.raises(WrongUse, match=r"one .* other"):
        same_judge(reports)
    same_judge([reports[0], reports[0]])


def test_markdown_has_a_table_of_all_sides_and_marks_clear_differences():
    text = markdown(report_of(run()))
    assert "| myred |" in text and "references among themselves" in text and "95 % bootstrap" in text
    assert "6 pictures a side from 1 prompt, " in text
    assert re.search(r"\| clip_i \| \*\*0\.\d+ \(", text)


def test_the_page_is_whole_and_escapes_what_strangers_wrote():
    evil = Candidate(label="<script>alert(1)</script>", word="blue")
    text = page(report_of(run(sides=[SIDES[0], evil])), figures={}, sections={"Own": "<p>own</p>"})
    assert "<script>" not in text and "&lt;script&gt;" in text and "<p>own</p>" in text
    assert not re.search(r'(src|href)="(?!data:)', text) and "http" not in text
    assert text.count("data:image/jpeg") == 12


def test_plots_are_pngs(monkeypatch):
    plots = pytest.importorskip("ti_fix.evaluate.plots")
    pytest.importorskip("matplotlib")
    report = report_of(run())
    rows = [{"step": i, "smooth_loss": 1 / (i + 1)} for i in range(9)] + [{"step": 5, "fixed_loss": 0.2}]
    way = plots.way([("0", torch.randn(8)), ("9", torch.randn(8))], [("a $word$", torch.randn(8))], "CLIP-L")
    for image in (plots.scores(report), plots.training(rows), way):
        assert image.startswith(b"\x89PNG")


def test_the_axes_are_those_of_the_largest_variance():
    plots = pytest.importorskip("ti_fix.evaluate.plots")
    points = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([9.0, 3, 0.1, 0.1, 0.1, 0.1])
    flat_points, share = plots.pca(points)
    expected = torch.linalg.eigvalsh(torch.cov(points.T)).flip(0)
    assert torch.allclose(flat_points.var(dim=0), expected[:2], rtol=1e-4)
    assert share == pytest.approx(float(expected[:2].sum() / expected.sum()), abs=1e-5)
