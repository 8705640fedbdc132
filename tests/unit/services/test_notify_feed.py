"""A client of Kafka that hangs ends the process: nothing else can end its call."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lookout.errors import LookoutRuntimeError
from lookout.services.notify import feed as module
from lookout.services.notify.feed import Feed


def test_a_feed_that_takes_no_turn_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANGS_S", -1.0)
    nothing = cast("Any", None)
    with pytest.raises(LookoutRuntimeError, match="has not returned"):
        Feed(nothing, nothing, nothing, nothing).watch()
