"""Searches the past of all cameras: ranks spans by landmarks, and verifies the best by their windows."""

from typing import TYPE_CHECKING, Final

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.past.find.client import find as find

SHARE: Final = 0.08
"""By default, a search computes at most this share of the windows. With ranking and asking the memory, that
costs less than a tenth of computing every window (`make bench-find`)."""

__getattr__ = lazy_names(__name__)
