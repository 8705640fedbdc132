"""Find: one question over all cameras and their past, ranked by landmarks, verified by exact windows."""

from typing import TYPE_CHECKING, Final

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.past.find.client import find as find

SHARE: Final = 0.08
"""Share of the windows that a search computes at most, unless told otherwise: with what ranking and asking
the memory cost, less than a tenth of asking every window (`make bench-find`)."""

__getattr__ = lazy_names(__name__, {"client": ["find"]})
