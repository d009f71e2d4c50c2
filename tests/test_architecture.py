"""The rules of docs/architecture.md, read off the source with `ast`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ti_fix"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
SOURCES = sorted(
    path
    for pattern in ("*.py", "benchmarks/**/*.py", "docs/**/*.py", "scripts/*.py", "tests/**/*.py", "ti_fix/**/*.py")
    for path in ROOT.glob(pattern)
)
LONGEST_FILE = 400

NOUNS = frozenset(
    {
        "__init__",
        "additions",
        "embedding",
        "errors",
        "ldm_keys",
        "on_demand",
        "options",
        "phrases",
        "prompt",
        "prompt_syntax",
        "protocols",
        "text_model",
        "tokenizer",
    }
)
FEATURES = frozenset({"align", "convert", "evaluate", "heatmap", "repair", "train"})
MAY_USE = {
    **dict.fromkeys(NOUNS, NOUNS),
    "formats": NOUNS | {"formats"},
    **{feature: NOUNS | {"formats", feature} for feature in FEATURES},
    "api": NOUNS | {"api", "formats", "repair"},
    "jobs": NOUNS | {"jobs"},
    "hosts": NOUNS | {"hosts"},
    "small": NOUNS | {"formats", "small"},
    "ui": NOUNS | FEATURES | {"formats", "jobs", "ui"},
    "cli": NOUNS | FEATURES | {"cli", "formats", "hosts", "jobs", "small", "ui"},
    "__main__": NOUNS | {"cli"},
}
"""Part of the package (a module or a folder) -> the parts that it may import."""

EXCEPTIONS = dict.fromkeys(("hosts/load_hook.py", "hosts/bundle_hook.py"), frozenset({"formats", "repair"}))
"""Files that may import more than their part, as docs/architecture.md says."""

CORE_PACKAGES = frozenset({"PIL", "numpy", "safetensors", "torch"})
HOST_FILES = (
    r"hosts/(a1111|a1111_model|captioners|forge|forge_model|load_hook|maps_script|pictures|training_host|webui)\.py"
)
ONLY_IN = {
    "backend": HOST_FILES,
    "ldm_patched": HOST_FILES,
    "modules": HOST_FILES,
    "modules_forge": HOST_FILES,
    "gradio": r"ui/.*",
    "fastapi": r"ui/.*",
    "diffusers": r"(hosts/standalone|small)\b.*",
    "transformers": r"(hosts/standalone|small)\b.*",
    "resvg_py": r"small/training/pictures\.py",
    "matplotlib": r"evaluate/plots\.py",
    "open_clip": r"evaluate/features\.py",
}
"""Package of others -> the files that may import it, as a pattern."""

MAY_PRINT = ("cli",)
MAY_CATCH_ALL = r"(api|cli|ui|jobs)\b.*|hosts/load_hook\.py|formats/unpickle\.py"
PICKS_MODULES = ("formats/picture_pixels.py", "ui/pages.py", "cli/__init__.py", "on_demand.py")
"""Files that import by a name from a table: Pillow's optional decoders, the pages there are, the command called, the
modules of a package whose names are imported on demand."""

KNOWN_METHODS = ("find_class", "persistent_load")
"""Methods that the standard library documents and we override."""


def _part(module: str) -> str:
    """The part of the package that a file like ``formats/png.py`` belongs to."""
    return module.partition("/")[0].removesuffix(".py")


def _imports(module: str, tree: ast.AST) -> Iterator[str]:
    """The dotted names that a file imports, anywhere in it; relative ones made absolute."""
    folder = ["ti_fix", *module.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__") and node.args:
            if isinstance(node.args[0], ast.Constant):
                yield node.args[0].value
            elif module not in PICKS_MODULES:
                yield "a name made up at run time"
        elif isinstance(node, ast.Call) and _called(node) == "on_demand" and ast.unparse(node.args[0]) != "__name__":
            yield "another package's modules on demand"


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _wrong_imports(module: str, tree: ast.AST) -> Iterator[str]:
    allowed = MAY_USE.get(_part(module), frozenset()) | EXCEPTIONS.get(module, frozenset())
    for name in _imports(module, tree):
        top, *rest = name.split(".")
        if top == "ti_fix":
            part = rest[0] if rest and _exists(rest[0]) else "__init__"
            if part not in allowed:
                yield f"imports {part}"
        elif top in ONLY_IN:
            if not re.fullmatch(ONLY_IN[top], module):
                yield f"imports {top}"
        elif top not in CORE_PACKAGES and top not in sys.stdlib_module_names:
            yield f"imports {top}"


def _exists(part: str) -> bool:
    """Whether a name is a part of the package rather than something that its ``__init__`` defines."""
    return part in MAY_USE


def _wrong_statements(module: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "print" and _part(module) not in MAY_PRINT:
            yield "prints"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            yield f"calls {node.func.id}"
        if isinstance(node, ast.ExceptHandler):
            caught = getattr(node.type, "id", "")
            if node.type is None:
                yield "has a bare except"
            elif caught in ("BaseException", "Exception") and not re.fullmatch(MAY_CATCH_ALL, module):
                yield "catches everything"


def _undocumented(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Public functions, methods and classes without a docstring; properties and bodies of ``...`` need none."""
    for node in body:
        name = getattr(node, "name", "_")
        if name.startswith("_") or name in KNOWN_METHODS:
            continue
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (_is_property(node) or _is_empty(node)):
            continue
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not ast.get_docstring(node):
            yield f"{prefix}{name} has no docstring"


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def _is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.unparse(node.body[0]) == "..."


def faults(module: str, source: str) -> list[str]:
    """What breaks a rule in one file of the package."""
    tree = ast.parse(source)
    return [*_wrong_imports(module, tree), *_wrong_statements(module, tree), *_undocumented(tree.body)]


@pytest.mark.parametrize("module", MODULES)
def test_rules(module):
    assert not faults(module, (PACKAGE / module).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("repair/defects.py", "from ti_fix.convert import ladder", "imports convert"),
        ("repair/defects.py", "from ti_fix import convert", "imports convert"),
        ("repair/defects.py", "from ..convert import ladder", "imports convert"),
        ("repair/defects.py", "from .. import convert", "imports convert"),
        ("repair/defects.py", "def _f():\n    import ti_fix.convert.ladder", "imports convert"),
        ("repair/defects.py", "def _f(x):\n    __import__(x)", "imports a name made up at run time"),
        ("repair/defects.py", "import importlib\nimportlib.import_module('ti_fix.convert')", "imports convert"),
        ("train/__init__.py", "on_demand('ti_fix.convert', {})", "imports another package's modules on demand"),
        ("formats/png.py", "from ti_fix.repair import repair", "imports repair"),
        ("embedding.py", "from ti_fix.formats import read", "imports formats"),
        ("hosts/forge.py", "from ti_fix.repair import repair", "imports repair"),
        ("ui/tab.py", "from ti_fix.hosts import forge", "imports hosts"),
        ("unplanned.py", "from ti_fix.embedding import SDXL", "imports embedding"),
        ("train/loop.py", "import gradio as gr", "imports gradio"),
        ("train/loop.py", "from modules import shared", "imports modules"),
        ("hosts/standalone.py", "import backend.loader", "imports backend"),
        ("align/checks.py", "from transformers import CLIPTokenizer", "imports transformers"),
        ("evaluate/metrics.py", "import open_clip", "imports open_clip"),
        ("evaluate/metrics.py", "import scipy", "imports scipy"),
        ("formats/png.py", "print(1)", "prints"),
        ("formats/png.py", "eval('1')", "calls eval"),
        ("cli.py", "try:\n    x = 1\nexcept:\n    raise", "has a bare except"),
        ("formats/png.py", "try:\n    x = 1\nexcept Exception:\n    raise", "catches everything"),
        ("formats/png.py", "def read(): return 1", "read has no docstring"),
        ("formats/png.py", "class Png:\n    '''A'''\n    def read(self): return 1", "Png.read has no docstring"),
    ],
)
def test_a_broken_rule_is_seen(module, source, fault):
    assert faults(module, source) == [fault]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hosts/load_hook.py", "from ti_fix.repair import repair\nfrom ti_fix.formats import read\nimport modules"),
        ("hosts/standalone/pipeline.py", "import diffusers, transformers"),
        ("evaluate/features.py", "import open_clip"),
        ("cli.py", "from ti_fix.hosts import standalone\nprint(1)\ntry:\n    x = 1\nexcept Exception:\n    raise"),
        ("formats/__init__.py", "from .png import read\nfrom ti_fix import __version__"),
        ("formats/png.py", "def _f(): pass\nclass A:\n    '''A'''\n    @property\n    def b(self): return 1"),
    ],
)
def test_what_is_allowed_is_not_reported(module, source):
    assert not faults(module, source)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


def test_style_stays_inside_our_elements():
    rules = re.sub(r"/\*.*?\*/", "", (ROOT / "style.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    selectors = [each.strip() for heads in re.findall(r"([^{}]+)\{", rules) for each in heads.split(",")]
    assert not [each for each in selectors if not each.startswith(("#ti_fix_", "@media"))]
