"""`lookout erase --check`: what is no receipt."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.options import CliError


@pytest.mark.parametrize("name", ["/dev/zero", "nested", "number", "missing", "."])
def test_what_is_no_receipt_is_one_plain_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "nested").write_text("[" * 100_000)
    (tmp_path / "number").write_text('{"signature": ' + "9" * 5000 + "}")
    error = CliRunner().invoke(app, ["erase", "--check", str(tmp_path / name)]).exception
    assert isinstance(error, CliError)
    assert "not a receipt" in str(error)
