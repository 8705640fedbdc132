"""Builds the records of labels."""

from __future__ import annotations

from collections.abc import Sequence

from lookout.v1.labels_pb2 import Label
from lookout.wire import label_key, to_json


def label_rows(labels: Sequence[Label], by: str, *, remove: bool = False) -> dict[str, bytes | None]:
    """Return the records of labels, or the records that remove them.

    Args:
        labels: The labels; unset times and names are filled in.
        by: Name of the person who gives the labels.
        remove: Whether to remove the labels instead of writing them.
    """
    for entry in labels:
        if not entry.HasField("labelled"):
            entry.labelled.GetCurrentTime()
        entry.labelled_by = entry.labelled_by or by[:200]
    return {label_key(entry): None if remove else to_json(entry) for entry in labels}
