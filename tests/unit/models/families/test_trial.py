"""A chat template and a tokenizer that compute for ever end a confined process, and are one plain error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.errors import LookoutError
from lookout.models.families import load_layout
from lookout.models.families.trial import try_prompt
from lookout.models.windows import WindowError
from tests.tiny_models import checkpoint, published

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
WIDE = "{% for a in range(10**9) %}x{% endfor %}"
LONG = "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"


def folder_with(folder: Path, template: str) -> Path:
    """A published checkpoint with another chat template."""
    for source in published("qwen3_vl").iterdir():
        (folder / source.name).symlink_to(source)
    (folder / "chat_template.json").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param(LOOPS, "more than 1 s of CPU", id="loops"),
        pytest.param(LONG, "GiB|of CPU", id="long", marks=pytest.mark.long),
    ],
)
def test_a_template_that_never_ends_is_named(tmp_path: Path, template: str, why: str) -> None:
    with pytest.raises(WindowError, match=why):
        try_prompt(folder_with(tmp_path, template), cpu_s=1.0)


@pytest.mark.long
def test_a_tokenizer_whose_pattern_explodes_is_named(tmp_path: Path) -> None:
    """Its pattern tries every way to cut a run of letters into pieces."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for source in checkpoint("qwen3_vl").iterdir():
        (folder / source.name).symlink_to(source)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    path.unlink()
    words = "a" * 2000 + "c"
    document["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+b"},
        "behavior": "Isolated",
        "invert": False,
    }
    path.write_text(json.dumps(document))
    (folder / "lookout_layout.json").unlink(missing_ok=True)
    (folder / "lookout_layout.json").write_text(json.dumps({"prefix": words}))
    with pytest.raises(WindowError, match="needs too many steps"):
        try_prompt(folder)
    with pytest.raises(WindowError, match="fails on a text: Onig"):  # and not an exception of no class
        load_layout(folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_vl", pytest.param("internvl", marks=pytest.mark.long)])
def test_an_honest_checkpoint_passes(family: str) -> None:
    try_prompt(published(family))


def test_a_template_that_fails_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(WindowError, match="its chat template fails: "):
        load_layout(folder_with(tmp_path, WIDE))


@pytest.mark.long
def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["model", "check", str(folder_with(tmp_path, WIDE))])
    assert isinstance(done.exception, LookoutError)  # which the command prints as one line
    assert str(done.exception).count("its chat template fails") == 1
