"""Find: one question over all cameras and their past, ranked by landmarks, verified by exact windows."""

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.past.find.client import find as find

__getattr__ = lazy_names(__name__, {"client": ["find"]})
