"""Which model this is."""

from lookout.runtime.model import folder_digest

__all__ = ["folder_digest"]
