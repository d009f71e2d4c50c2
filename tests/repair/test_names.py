"""Names: what prompts cannot call, and what collides in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from ti_fix.repair import scan
from ti_fix.repair.names import judge_name


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("<cat-toy>", "cat-toy"),
        ("a,b", "a-b"),
        ("emb (v2) [final]", "emb-v2-final"),
        ("fast|slow", "fast-slow"),
        ("name_with_:1.2", "name_with_-1.2"),
        ("{curly}", "curly"),
        ("back\\slash", "back-slash"),
        ("（全角）style", "全角-style"),
        ("ｆｕｌｌ", "full"),
        ("()", "embedding"),
    ],
)
def test_prompt_syntax_gets_an_alias(name: str, alias: str) -> None:
    naming = judge_name(name)
    assert naming.trigger == name
    assert alias in naming.aliases
    assert f"write its alias {alias!r}" in naming.findings[0].message


@pytest.mark.parametrize(
    "name", ["my cute dog", "Éléonore", "猫耳メイド", "emoji_😺", "hero-step00001250", "x.y", "it's-me"]
)
def test_names_that_need_nothing(name: str) -> None:
    naming = judge_name(name)
    assert (naming.trigger, naming.aliases, naming.findings) == (name, (), ())


@pytest.mark.parametrize(
    ("name", "clean"),
    [("he\u200bro-x", "hero-x"), ("\ufeffhero-x", "hero-x"), (" hero-x ", "hero-x"), ("he\u00adro-x", "hero-x")],
)
def test_invisible_characters_go(name: str, clean: str) -> None:
    naming = judge_name(name)
    assert naming.trigger == clean
    assert naming.aliases == (name,)
    assert naming.findings[0].repaired


@pytest.mark.parametrize("word", ["cat", "a", "1girl", "Cat", "2boys"])
def test_ordinary_words_are_reported(word: str) -> None:
    assert [f.code for f in judge_name(word).findings] == ["ordinary-word"]


@pytest.mark.parametrize(
    ("word", "severity"), [("cat", "warning"), ("1girl", "warning"), ("ohwx", "note"), ("sks", "note")]
)
def test_rare_words_are_only_noted(word: str, severity: str) -> None:
    assert [f.severity for f in judge_name(word).findings] == [severity]


@pytest.mark.parametrize("name", ["y2k", "easynegative", "cattu", "cat-toy-x"])
def test_made_up_names_are_no_words(name: str) -> None:
    assert judge_name(name).findings == ()


@pytest.mark.parametrize(
    ("name", "alias"),
    [("AND", "and-ti"), ("BREAK", "break-ti"), ("AND-cat", "and-cat"), ("cat AND dog", "cat and dog")],
)
def test_where_a_keyword_cuts_a_name_there_is_an_alias_without(name: str, alias: str) -> None:
    found = judge_name(name)
    assert found.aliases == (alias,)
    assert repr(alias) in found.findings[0].message


@pytest.mark.parametrize("name", ["BRANDO-x", "my_BREAK", "breaking-zq"])
def test_keywords_within_a_word_cut_nothing(name: str) -> None:
    assert judge_name(name).aliases == ()


def test_a_converted_file_never_takes_over_a_word() -> None:
    assert judge_name("cat", converted=True).trigger == "cat-ti"
    assert judge_name("cat", converted=False).trigger == "cat"


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    halves = {"clip_l": torch.full((1, 768), 0.01), "clip_g": torch.full((1, 1280), 0.01)}
    safetensors.torch.save_file(halves, path)
    return path


def codes(folder: Path) -> dict[str, list[str]]:
    return {str(j.parsed.paths[0].relative_to(folder)): [f.code for f in j.result.findings] for j in scan([folder])}


def test_of_two_files_of_one_name_the_top_folder_wins(tmp_path: Path) -> None:
    make(tmp_path / "hero-x.safetensors")
    make(tmp_path / "sub" / "hero-x.safetensors")
    judged = {str(j.parsed.paths[0].relative_to(tmp_path)): j.result.verdict for j in scan([tmp_path])}
    assert judged == {"hero-x.safetensors": "load", str(Path("sub/hero-x.safetensors")): "warn"}


def test_the_other_file_is_named_as_seen_from_the_same_folder(tmp_path: Path) -> None:
    for place in ("hero-x.safetensors", "hero-x.pt", "sub/hero-x.safetensors"):
        make(tmp_path / place)
    told = " ".join(f.message for j in scan([tmp_path]) for f in j.result.findings if f.code == "same-name")
    assert f"{tmp_path.name}/sub/hero-x.safetensors" in told
    assert str(tmp_path) not in told


def test_case_twins_both_warn(tmp_path: Path) -> None:
    make(tmp_path / "one" / "Hero-x.safetensors")
    make(tmp_path / "two" / "hero-X.safetensors")
    assert all(found == ["case-twins"] for found in codes(tmp_path).values())


def test_a_name_that_begins_another_is_noted(tmp_path: Path) -> None:
    make(tmp_path / "whatever-20.safetensors")
    make(tmp_path / "whatever-200.safetensors")
    assert codes(tmp_path) == {"whatever-20.safetensors": ["prefix"], "whatever-200.safetensors": []}
