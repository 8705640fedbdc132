"""`lookout report` on a machine without the packages of the gateway."""

from __future__ import annotations

import sys

import pytest

from lookout.cli.report import shift
from lookout.cli.report_command import _sentences
from lookout.missing import MissingPackageError


@pytest.fixture
def plain_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which sqlalchemy cannot be imported."""
    for name in [name for name in sys.modules if name.startswith("lookout.services.gateway.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)


@pytest.mark.usefixtures("plain_install")
def test_a_report_without_the_gateway_s_packages_says_what_to_install() -> None:
    with pytest.raises(MissingPackageError, match="lookout-fleet"):
        shift.report(bootstrap="127.0.0.1:1")
    (line,) = _sentences("127.0.0.1:1", "1h", ["gate"])
    assert "sqlalchemy" in line
    assert "pip install 'lookout-fleet[gateway]'" in line
