"""Labels as records."""

from __future__ import annotations

from collections.abc import Sequence

from lookout.v1.labels_pb2 import Label
from lookout.wire import label_key, to_json


def label_rows(labels: Sequence[Label], by: str, *, remove: bool = False) -> dict[str, bytes | None]:
    """The records of labels, or those that take them back.

    Args:
        labels: What a person says; the time and the name of who says it are set where they are not.
        by: Who says it.
        remove: Take them back.
    """
    for entry in labels:
        if not entry.HasField("labelled"):
            entry.labelled.GetCurrentTime()
        entry.labelled_by = entry.labelled_by or by[:200]
    return {label_key(entry): None if remove else to_json(entry) for entry in labels}
