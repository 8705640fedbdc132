"""A checkpoint folder from elsewhere is refused in one sentence before anything is allocated for it."""

from __future__ import annotations

import json
import re
import shutil
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lookout.errors import LookoutError
from lookout.models import TINY, ModelError, find_model
from lookout.models.families import load_layout
from lookout.models.families.loading import load_tower
from lookout.models.windows import WindowError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file; `__` goes one level down."""
    whole = json.loads(path.read_text())
    for name, value in values.items():
        *parents, last = name.split("__")
        part = whole
        for parent in parents:
            part = part[parent]
        part[last] = value
    path.write_text(json.dumps(whole))


def table(path: Path, **tensor: Any) -> None:
    """Change one tensor's entry in the table of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    facts = json.loads(data[8 : 8 + length])
    facts[min(name for name in facts if name != "__metadata__")].update(tensor)
    text = json.dumps(facts).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_the_shipped_model_and_links_to_it_are_taken(folder: Path, tmp_path: Path) -> None:
    assert find_model(folder) == folder
    linked = tmp_path / "linked"  # as a download cache lays its folders out
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    assert find_model(linked) == linked


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"vision_config__num_hidden_layers": 10**7}, "num_hidden_layers is 1e[+]07; the limit is 1000"),
        ({"vision_config__hidden_size": 10**12}, "hidden_size is 1e[+]12"),
        ({"text_config__rms_norm_eps": float("nan")}, "rms_norm_eps is inf"),
        ({"x": [[{"y\x1b[2J": 1e300}]]}, r"y\\x1b\[2J is inf"),
    ],
)
def test_numbers_that_cannot_be_are_named(folder: Path, values: dict[str, Any], problem: str) -> None:
    change(folder / "config.json", **values)
    with pytest.raises(ModelError, match=problem):
        find_model(folder)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", " " * (5 << 20), "\x00"],
)
def test_a_configuration_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        find_model(folder)


def test_a_device_in_a_file_s_place_is_not_read(folder: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        with pytest.raises(ModelError, match="cannot be read"):
            find_model(folder)


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [1 << 40, 1 << 40]},
        {"data_offsets": [0, 1 << 62]},
        {"data_offsets": [-8, 0]},
        {"dtype": "F4096"},
        {"shape": "x"},
    ],
)
def test_weights_that_are_not_there_are_refused(folder: Path, tensor: dict[str, Any]) -> None:
    table(folder / "model.safetensors", **tensor)
    with pytest.raises(ModelError, match="table of tensors cannot be used"):
        find_model(folder)


def test_a_table_longer_than_its_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + bytes(100))
    with pytest.raises(ModelError, match="damaged"):
        find_model(folder)


#: An object that says nothing makes transformers build a published model before anything does not fit.
DEFAULTS = [pytest.param(name, {"a": 1}, marks=pytest.mark.long) for name in ("vision_config", "text_config")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *product(
            ("vision_config", "text_config", "model_type", "downsample_ratio"), (None, "text", [], -1, 0)
        ),
        ("model_type", {"a": 1}),
        ("downsample_ratio", {"a": 1}),
        *DEFAULTS,
    ],
)
def test_values_of_the_wrong_kind_are_one_error(folder: Path, name: str, value: Any) -> None:
    change(folder / "config.json", **{name: value})
    with pytest.raises(LookoutError):
        load_tower(find_model(folder))


@pytest.mark.parametrize("value", [None, "text", [], -1])
@pytest.mark.parametrize("name", ["vision_config", "text_config"])
def test_a_part_that_is_no_object_is_refused_before_a_model_is_built(
    folder: Path, name: str, value: Any
) -> None:
    change(folder / "config.json", **{name: value})
    with pytest.raises(ModelError, match=f"{name} is not a JSON object"):
        find_model(folder)


def test_code_beside_a_configuration_neither_runs_nor_is_asked_about(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    classes = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    change(folder / "config.json", model_type="own", auto_map=classes)
    with pytest.raises(LookoutError, match="not a family that Lookout runs"):
        load_tower(find_model(folder))
    assert not mark.exists()
    assert "Do you wish" not in capsys.readouterr().out


CUT = sorted(path.name for path in TINY.glob("*.json") if path.name not in {"config.json", "watchbench.json"})


@pytest.mark.parametrize("name", CUT)
def test_a_document_that_broke_off_in_a_copy_is_named(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    (folder / name).write_text(text[: len(text) // 2])
    with pytest.raises(ModelError, match=rf"{re.escape(name)} is not JSON"):
        find_model(folder)


def test_a_file_that_nobody_reads_may_hold_anything(folder: Path) -> None:
    (folder / "notes.json").write_text("not a document")
    assert find_model(folder) == folder


@pytest.mark.parametrize("text", ["{}", '{"model": {"type": "BPE", "vocab": {}, "merges": 7}}', "[1", ""])
def test_a_tokenizer_that_cannot_be_used_is_one_error(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(WindowError, match=rf"{re.escape(str(folder))}: its tokenizer cannot be used"):
        load_layout(folder)
