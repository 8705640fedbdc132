"""Writes the changes that people make to a fleet as records; shared by the command line and the gateway."""

from typing import TYPE_CHECKING

from lookout.administration.watches import (
    Standing as Standing,
    WatchError as WatchError,
    change_watch as change_watch,
    check_crowd as check_crowd,
    check_gate as check_gate,
    standing_of as standing_of,
)
from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.administration.erasures import erasure_requests as erasure_requests
    from lookout.administration.labels import label_rows as label_rows
    from lookout.administration.writing import (
        Origin as Origin,
        RecordPlace as RecordPlace,
        WriteError as WriteError,
        Writer as Writer,
    )

# Imported lazily, because signing and writing import gRPC and Redis, which `lookout watch` does not need.
__getattr__ = lazy_names(__name__)
