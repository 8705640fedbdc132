"""`lookout report` on a machine without the packages of the gateway."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest

from lookout.cli.report import shift
from lookout.missing import MissingPackageError


@pytest.fixture
def plain_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which sqlalchemy cannot be imported."""
    for name in [name for name in sys.modules if name.startswith("lookout.services.gateway.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)


@pytest.mark.usefixtures("plain_install")
def test_a_report_without_the_gateway_s_packages_says_what_to_install() -> None:
    with pytest.raises(MissingPackageError, match=r"pip install 'lookout-fleet\[gateway\]'"):
        shift.report(bootstrap="127.0.0.1:1")


def test_a_time_that_ends_before_it_begins_is_refused() -> None:
    now = datetime.now(UTC)
    with pytest.raises(ValueError, match="before until"):
        shift.report(since=now, until=now, bootstrap="127.0.0.1:1")
