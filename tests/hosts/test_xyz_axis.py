from __future__ import annotations

from types import SimpleNamespace

import pytest

from ti_fix.hosts.xyz_axis import LABEL, add_axis, apply


class AxisOption:
    """As both WebUIs define it."""

    def __init__(self, label, kind, apply, format_value=None, confirm=None, cost=0.0, choices=None, prepare=None):
        self.label, self.kind, self.apply, self.format_value, self.choices = label, kind, apply, format_value, choices


def scripts(*paths):
    def module():
        return SimpleNamespace(AxisOption=AxisOption, axis_options=[], format_value=str)

    return [SimpleNamespace(path=path, module=module()) for path in paths]


def test_the_axis_is_offered_once_with_the_names_of_now():
    loaded = scripts("/webui/scripts/loopback.py", "C:\\webui\\scripts\\xyz_grid.py")
    names = ["cat-q"]
    assert add_axis(loaded, lambda: names) and add_axis(loaded, lambda: names)
    (option,) = loaded[1].module.axis_options
    names.append("cat-q-100")
    assert (option.label, option.kind, option.choices()) == (LABEL, str, ["None", "cat-q", "cat-q-100"])
    assert loaded[0].module.axis_options == []


def test_without_the_script_nothing_happens():
    assert not add_axis(scripts("/webui/scripts/loopback.py"), list)


@pytest.mark.parametrize(
    ("prompt", "negative", "value", "expected"),
    [
        ("a photo of cat-q in snow", "ugly", "cat-q-100", ("a photo of cat-q-100 in snow", "ugly")),
        ("a photo of cat-q-100", "ugly", "cat-q", ("a photo of cat-q", "ugly")),
        ("a photo of (cat-q:1.2)", "", "None", ("a photo of (:1.2)", "")),
        ("a cat", "cat-q, ugly", "dog-q", ("a cat", "dog-q, ugly")),
        ("a cat", "", "cat-q", ("a cat, cat-q", "")),
        ("", "", "cat-q", ("cat-q", "")),
        ("a cat", "ugly", "None", ("a cat", "ugly")),
        ("concat-q", "", "dog-q", ("concat-q, dog-q", "")),
    ],
)
def test_one_embedding_takes_the_place_of_another(prompt, negative, value, expected):
    p = SimpleNamespace(prompt=prompt, negative_prompt=negative)
    apply(p, value, ["None", "cat-q", "cat-q-100", "dog-q"])
    assert (p.prompt, p.negative_prompt) == expected
