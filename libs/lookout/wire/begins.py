"""The begin of a recording, as a message's fields."""

from __future__ import annotations

from datetime import datetime, timedelta

from lookout.v1.recordings_pb2 import PlannedRecording, RecordingAnswer, RecordingSettings

Begun = RecordingSettings | PlannedRecording | RecordingAnswer
"""Messages with `begins` and its offset from UTC."""


def set_begin(message: Begun, begin: datetime | None) -> None:
    """Set when a recording begins.

    Args:
        message: The message to set it in.
        begin: The moment with its offset from UTC; None leaves the message unchanged.
    """
    if begin is None:
        return
    message.begins.FromDatetime(begin)
    message.begins_offset_min = (begin.utcoffset() or timedelta()) // timedelta(minutes=1)
