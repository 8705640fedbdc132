"""Errors about checkpoint folders."""

from __future__ import annotations

from lookout.errors import LookoutError

__all__ = ["ModelError"]


class ModelError(LookoutError, ValueError):
    """A folder that is no checkpoint."""
