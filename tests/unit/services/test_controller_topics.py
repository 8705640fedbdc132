"""How the chart's topics are configured."""

from __future__ import annotations

import pytest

from lookout.services.controller.topics import configuration
from lookout.wire import SEGMENTS, WATCHES


def test_new_topics_follow_the_table_and_the_owner() -> None:
    assert configuration(SEGMENTS, 1, 2.0)["retention.ms"] == "7200000"
    assert "min.insync.replicas" not in configuration(SEGMENTS, 1)
    assert configuration(SEGMENTS, 3)["min.insync.replicas"] == "2"
    with pytest.raises(Exception, match="compacted"):
        configuration(WATCHES, 1, 2.0)
