"""Networks, AND, prompt editing and alternation, against what AUTOMATIC1111 1.10.1 makes of the same prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ti_fix.prompt_syntax import parse_syntax

HOST = [
    ("a cat", [(1.0, [(10, "a cat")])]),
    ("a [cat:dog:0.5] on grass", [(1.0, [(5, "a cat on grass"), (10, "a dog on grass")])]),
    ("[a:b:3]x", [(1.0, [(3, "ax"), (10, "bx")])]),
    ("[new:4] end", [(1.0, [(4, " end"), (10, "new end")])]),
    ("[gone::2] end", [(1.0, [(2, "gone end"), (10, " end")])]),
    ("[[a:b:2]:c:6]", [(1.0, [(2, "a"), (6, "b"), (10, "c")])]),
    (
        "[a|b|c] d",
        [
            (
                1.0,
                [
                    (1, "a d"),
                    (2, "b d"),
                    (3, "c d"),
                    (4, "a d"),
                    (5, "b d"),
                    (6, "c d"),
                    (7, "a d"),
                    (8, "b d"),
                    (9, "c d"),
                    (10, "a d"),
                ],
            )
        ],
    ),
    (
        "[a|] d",
        [
            (
                1.0,
                [
                    (1, "a d"),
                    (2, " d"),
                    (3, "a d"),
                    (4, " d"),
                    (5, "a d"),
                    (6, " d"),
                    (7, "a d"),
                    (8, " d"),
                    (9, "a d"),
                    (10, " d"),
                ],
            )
        ],
    ),
    ("(a [b:c:.5]:1.2)", [(1.0, [(5, "(a b:1.2)"), (10, "(a c:1.2)")])]),
    ("[weak] word", [(1.0, [(10, "[weak] word")])]),
    ("[a:b", [(1.0, [(10, "[a:b")])]),
    ("a] b)", [(1.0, [(10, "a] b)")])]),
    ("(a:1.3) [b]", [(1.0, [(10, "(a:1.3) [b]")])]),
    ("[a (b:1.2):c:0.3]", [(1.0, [(3, "a (b:1.2)"), (10, "c")])]),
    ("[a:b:99] z", [(1.0, [(10, "a z")])]),
    ("[a:b:1.5]", [(1.0, [(10, "a")])]),
    ("a\\[b:c:0.5\\]", [(1.0, [(10, "a\\[b:c:0.5\\]")])]),
    ("[a:b: 4 ] k", [(1.0, [(4, "a k"), (10, "b k")])]),
    ("[ : in background:0.25] z", [(1.0, [(2, "  z"), (10, " in background z")])]),
    ("a AND b", [(1.0, [(10, "a")]), (1.0, [(10, " b")])]),
    ("a :0.4 AND b:1.2 AND [c:d:5]", [(0.4, [(10, "a")]), (1.2, [(10, " b")]), (1.0, [(5, " c"), (10, " d")])]),
    ("cat ANDY dog", [(1.0, [(10, "cat ANDY dog")])]),
    ("[a:[b:c:8]:3]", [(1.0, [(3, "a"), (8, "b"), (10, "c")])]),
    ("(((a)", [(1.0, [(10, "(((a)")])]),
    ("[x|y", [(1.0, [(10, "[x|y")])]),
    ("a | b", [(1.0, [(10, "a | b")])]),
    ("a : b", [(1.0, [(10, "a : b")])]),
    ("[a b:c d:0.5][e:2]", [(1.0, [(2, "a b"), (5, "a be"), (10, "c de")])]),
    ("[a:b:-1]", [(1.0, [(10, "b")])]),
    ("1:2", [(2.0, [(10, "1")])]),
    ("a:0.5", [(0.5, [(10, "a")])]),
    ("[(a:2):3]", [(1.0, [(3, ""), (10, "(a:2)")])]),
    ("BREAK [a:b:0.7] BREAK", [(1.0, [(7, "BREAK a BREAK"), (10, "BREAK b BREAK")])]),
    ("[a: b :c]", [(1.0, [(10, "[a: b :c]")])]),
    ("[::5] q", [(1.0, [(5, " q"), (10, " q")])]),
    ("[:x:5] q", [(1.0, [(5, " q"), (10, "x q")])]),
    ("a [b:1e1] c", [(1.0, [(10, "a  c")])]),
    ("[a::] k", [(1.0, [(10, "[a::] k")])]),
    ("((a:b) c", [(1.0, [(10, "((a:b) c")])]),
    ("[a|b:c] k", [(1.0, [(10, "[a|b:c] k")])]),
    (
        "[a|[b:c:3]|d]",
        [(1.0, [(1, "a"), (2, "b"), (3, "d"), (4, "a"), (5, "c"), (6, "d"), (7, "a"), (8, "c"), (9, "d"), (10, "a")])],
    ),
]
"""Prompt -> for each part between ANDs its weight and (last step, text) pairs, printed by the host for 10 steps."""


@pytest.mark.parametrize(("prompt", "expected"), HOST)
def test_a_prompt_comes_to_the_hosts_texts(prompt, expected):
    found = parse_syntax(prompt, 10).branches
    assert [(b.weight, [(s.last, s.text) for s in b.stages]) for b in found] == expected


def test_the_stages_of_a_branch_follow_each_other_without_a_gap():
    (branch,) = parse_syntax("[a:[b:c:8]:3] [d|e]", 10).branches
    assert [s.first for s in branch.stages] == [1, *(s.last + 1 for s in branch.stages[:-1])]


def test_networks_are_taken_out():
    found = parse_syntax("a <lora:my style:0.8> cat <hypernet:x:1>, 1 < 2")
    assert found.networks == (("lora", "my style:0.8"), ("hypernet", "x:1"))
    assert found.branches[0].stages[0].text == "a  cat , 1 < 2"


@given(st.text(alphabet="ab[]():|\\ .15AND", max_size=40), st.integers(1, 30))
def test_any_text_gives_every_step_one_text(prompt, steps):
    for branch in parse_syntax(prompt, steps).branches:
        covered = [step for s in branch.stages for step in range(s.first, s.last + 1)]
        assert covered == list(range(1, steps + 1))


@pytest.mark.parametrize("sign", ["(", "[", "[a|", "((a:b)"])
def test_thousands_of_open_brackets_are_plain_text(sign):
    ((branch,),) = (parse_syntax(sign * 3000, 10).branches,)
    assert [stage.text for stage in branch.stages] == [sign * 3000]
