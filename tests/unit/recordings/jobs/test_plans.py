"""Settings of a recording's job, as a request has them."""

from __future__ import annotations

import pytest

from lookout.pruning import WholeFrames
from lookout.recordings.analysis import AnalysisError, AnalysisSettings
from lookout.recordings.jobs import settings_message, settings_of
from lookout.v1.recordings_pb2 import RecordingSettings


def test_a_policy_travels_by_its_name() -> None:
    asked = AnalysisSettings(fps=4, prune=True, policy="default")
    assert settings_of(settings_message(asked)) == asked
    assert settings_of(settings_message(AnalysisSettings())) == AnalysisSettings()
    with pytest.raises(AnalysisError, match="only by name"):
        settings_message(AnalysisSettings(policy=WholeFrames()))


def test_a_policy_that_no_recording_can_follow_is_refused() -> None:
    for name in ("codecsight", "nothing"):
        with pytest.raises(AnalysisError, match=name):
            settings_of(RecordingSettings(policy=name))
