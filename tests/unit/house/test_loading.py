"""Nothing that libs and services read can run code: no pickle, no eval, no checkpoint that is more than
tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.source import parse, walk

ROOT = Path(__file__).parents[3]
UNPICKLING = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "_pickle", "shelve"}
RUNNING = {"eval", "exec", "compile", "__import__"}

# file: why it may
ALLOWED: dict[str, str] = {}


def found(code: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a source text that may run what it reads."""
    for node in walk(code):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in UNPICKLING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLING:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call):
            yield from _called(node)


def _called(call: ast.Call) -> Iterator[tuple[int, str]]:
    given = {key.arg: ast.unparse(key.value) for key in call.keywords}
    if isinstance(call.func, ast.Name) and call.func.id in RUNNING:
        yield call.lineno, call.func.id
    if not isinstance(call.func, ast.Attribute):
        return
    name = f"{ast.unparse(call.func.value)}.{call.func.attr}"
    if name == "torch.load" and given.get("weights_only") != "True":
        yield call.lineno, "torch.load without weights_only=True"
    # Left out, transformers asks on the terminal whether the folder's own code may run.
    loads = call.func.attr == "from_pretrained" and name.startswith("Auto")
    if loads and given.get("trust_remote_code") != "False":
        yield call.lineno, f"{name} without trust_remote_code=False"
    if given.get("allow_pickle", "False") != "False":
        yield call.lineno, f"{name} with allow_pickle"
    if call.func.attr == "read_pickle" or name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
        yield call.lineno, name


def test_no_code_runs_what_it_reads() -> None:
    wrong = []
    for folder in ("libs", "services", "examples"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            wrong += [
                f"{name}:{line}: {what}" for line, what in found(file.read_text()) if name not in ALLOWED
            ]
    assert not wrong, "\n".join(wrong)


def test_what_is_allowed_is_still_there() -> None:
    assert [name for name in ALLOWED if not list(found((ROOT / name).read_text()))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import yaml\nyaml.load('x')",
        "AutoConfig.from_pretrained('x')",
        "eval('1')",
        "exec('1')",
    ],
)
def test_what_runs_code_is_found(code: str) -> None:
    assert list(found(code))


@pytest.mark.parametrize(
    "code", ["model.eval()", "torch.load('x', weights_only=True)", "np.load('x')", "re.compile('x')"]
)
def test_what_runs_none_is_not(code: str) -> None:
    assert not list(found(code))


def stock_heads(code: str) -> list[int]:
    """Lines on which a module imports classes of transformers' models as soon as it is read itself."""
    return [
        node.lineno
        for node in parse(code).body
        if (isinstance(node, ast.ImportFrom) and node.module == "transformers")
        or (isinstance(node, ast.Import) and any(name.name == "transformers" for name in node.names))
    ]


def test_an_import_of_stock_models_at_the_head_is_found() -> None:
    assert stock_heads("import os\nfrom transformers import AutoModel\nimport transformers\n") == [2, 3]
    inside = (
        "if TYPE_CHECKING:\n    from transformers import AutoModel\n\ndef f():\n    import transformers\n"
    )
    assert stock_heads(f"from transformers.vision_utils import a\n{inside}") == []


@pytest.mark.parametrize("folder", ["libs", "bench", "tests"])
def test_stock_models_are_imported_where_they_are_used(folder: str) -> None:
    # They import compilers, seconds of a CPU, and every worker reads the heads of all that it collects.
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in stock_heads(file.read_text())
    ]
    assert not wrong
