"""Names of a package that are imported on first use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SOURCE = """
from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from {name}.colors import RED as RED

__getattr__ = lazy_names(__name__)
"""


def test_names_for_type_checkers_are_imported_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"paints_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(SOURCE.format(name=name))
    (tmp_path / name / "colors.py").write_text("RED = 'red'\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    package = __import__(name)

    assert f"{name}.colors" not in sys.modules
    assert package.RED == "red"
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'GREEN'"):
        package.GREEN  # noqa: B018
