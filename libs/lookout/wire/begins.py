"""When a recording begins, in a message."""

from __future__ import annotations

from datetime import datetime, timedelta

from lookout.v1.recordings_pb2 import PlannedRecording, RecordingAnswer, RecordingSettings

Begun = RecordingSettings | PlannedRecording | RecordingAnswer
"""What has `begins` and its offset from UTC."""


def set_begin(message: Begun, begin: datetime | None) -> None:
    """Say when a recording begins.

    Args:
        message: Where.
        begin: The moment with its offset from UTC; None: it is not known.
    """
    if begin is None:
        return
    message.begins.FromDatetime(begin)
    message.begins_offset_min = (begin.utcoffset() or timedelta()) // timedelta(minutes=1)
