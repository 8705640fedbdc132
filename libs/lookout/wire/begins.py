"""Sets a message's fields for the time at which a recording begins."""

from __future__ import annotations

from datetime import datetime, timedelta

from lookout.v1.recordings_pb2 import PlannedRecording, RecordingAnswer, RecordingSettings

Begun = RecordingSettings | PlannedRecording | RecordingAnswer
"""Messages that have `begins` and its offset from UTC."""


def set_begin(message: Begun, begin: datetime | None) -> None:
    """Set when a recording begins.

    Args:
        message: The message to change.
        begin: The begin, with its offset from UTC. None: unknown; the message is not changed.
    """
    if begin is None:
        return
    message.begins.FromDatetime(begin)
    message.begins_offset_min = (begin.utcoffset() or timedelta()) // timedelta(minutes=1)
