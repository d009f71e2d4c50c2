"""Which errors of a WebUI's page count as faults of ours."""

from __future__ import annotations

from tests.ui.browser import faults

MESSAGE = "Cannot read properties of undefined (reading 'props')"
GRADIO = """TypeError: {}
    at http://127.0.0.1:7860/assets/Blocks-b3881047.js:45:1828
    at Array.forEach (<anonymous>)
    at qe (http://127.0.0.1:7860/assets/Blocks-b3881047.js:45:1787)"""

STYLE = "Cannot read properties of null (reading 'style')"
SHORTCUT = """TypeError: {}
    at HTMLDocument.<anonymous> (http://127.0.0.1:7860/file=script.js?1796076789.01:185:33)"""


def test_only_what_a_webui_is_known_to_say_by_itself_is_left_out():
    assert faults.of_webui(MESSAGE, GRADIO.format(MESSAGE))
    assert faults.of_webui(STYLE, SHORTCUT.format(STYLE))
    assert not faults.of_webui(STYLE, GRADIO.format(STYLE))
    assert not faults.of_webui(MESSAGE, SHORTCUT.format(MESSAGE))


def test_the_same_words_from_elsewhere_are_a_fault():
    ours = f"TypeError: {MESSAGE}\n    at http://127.0.0.1:7860/file=extensions/ti_fix/javascript/ti_fix.js:7:1"
    assert not faults.of_webui(MESSAGE, ours)
    assert not faults.of_webui(MESSAGE, f"{ours}\n{GRADIO.format(MESSAGE)}")
