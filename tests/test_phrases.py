from __future__ import annotations

import pytest

from ti_fix.errors import WrongUse
from ti_fix.phrases import GROUPS, LEXICON, content_words, lexicon, phrases, reworded


def named(prompt, **more):
    return [(p.text, p.group) for p in phrases(prompt, lexicon(**more))]


def test_words_are_found_with_their_groups():
    found = named("An oil painting of a Red cat sleeping on the beach", objects=["mycat"])
    assert found == [
        ("oil painting", "style"),
        ("Red", "colour"),
        ("cat", "object"),
        ("sleeping", "action"),
        ("beach", "scene"),
    ]


def test_the_colour_of_a_background_is_scene():
    assert named("a red circle on a white background") == [("red", "colour"), ("circle", "object"), ("white", "scene")]


def test_a_class_word_is_an_object_whatever_the_lexicon_says():
    assert named("a blue wombat", objects=["wombat"]) == [("blue", "colour"), ("wombat", "object")]
    assert named("a blue wombat") == [("blue", "colour")]


def test_groups_of_the_user_win():
    found = named("a crimson moped in the void", own=["colour=crimson", "vehicle=moped, scooter", "scene=the void"])
    assert found == [("crimson", "colour"), ("moped", "vehicle"), ("the void", "scene")]
    with pytest.raises(WrongUse, match="colour=crimson"):
        lexicon(["crimson"])


def test_a_word_is_swapped_in_its_place():
    prompt = "a red circle beside a blue square"
    first, *_ = phrases(prompt)
    found = phrases(prompt)
    assert reworded(prompt, found, ["green", "star", "pale blue", "ring"]) == "a green star beside a pale blue ring"
    assert reworded(prompt, found, [phrase.text for phrase in found]) == prompt
    assert not {"person", "girl", "man"} & set(phrases("a woman")[0].alternatives)
    assert phrases("a cat")[0].alternatives[:3] == ("dog", "horse", "bird")
    assert phrases("a circle")[0].alternatives[:2] == ("square", "triangle")
    assert not {"cat", "table"} & set(phrases("a circle")[0].alternatives)  # its own kind is enough
    assert len({"gray", "grey"} & set(first.alternatives)) == 1  # twice the same word would count twice
    assert "blue" not in first.alternatives and "red" not in first.alternatives and "green" in first.alternatives


def test_no_word_is_in_two_groups():
    words = [word for listed in LEXICON.values() for word in listed]
    assert len(words) == len(set(words)) and set(LEXICON) == set(GROUPS)


def test_content_words_leave_out_what_means_nothing():
    assert content_words("A red circle and a blue circle on the beach, 4 k") == ["red", "circle", "blue", "beach", "k"]
