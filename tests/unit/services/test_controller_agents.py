"""What a camera's status says of its stream, from its agent's report."""

from __future__ import annotations

import pytest

from lookout.services.controller.agents import streaming
from lookout.services.controller.convert import Condition


@pytest.mark.parametrize(
    ("report", "condition"),
    [
        ({"state": "streaming", "error": ""}, Condition("Streaming", True, "Streaming")),
        (
            {"state": "connecting", "error": "[Errno 111] Connection refused"},
            Condition("Streaming", False, "Reconnecting", "[Errno 111] Connection refused"),
        ),
    ],
)
def test_a_stream_runs_or_says_what_broke_it(report: dict[str, str], condition: Condition) -> None:
    assert streaming(report) == condition


def test_a_stream_that_has_not_been_tried_yet_does_not_claim_to_be_opened_again() -> None:
    found = streaming({"state": "connecting", "error": ""})
    assert (found.status, found.reason) == (False, "Connecting")
    assert found.message
