"""Searches the past of all cameras: ranks spans by landmarks, and verifies the best spans by computing their
windows."""

from typing import TYPE_CHECKING, Final

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.past.find.client import find as find

SHARE: Final = 0.08
"""Default maximum share of the windows that a search computes. Including the cost of ranking and of asking
the memory, a search then costs less than a tenth of computing every window (`make bench-find`)."""

__getattr__ = lazy_names(__name__)
