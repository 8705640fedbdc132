"""What people change in a fleet, as records: the command line and the gateway write them by the same functions."""

from lookout.administration.erasures import erasure_requests as erasure_requests
from lookout.administration.labels import label_rows as label_rows
from lookout.administration.watches import (
    Standing as Standing,
    WatchError as WatchError,
    change_watch as change_watch,
    check_crowd as check_crowd,
    standing_of as standing_of,
)
from lookout.administration.writing import (
    Origin as Origin,
    Place as Place,
    WriteError as WriteError,
    Writer as Writer,
)
