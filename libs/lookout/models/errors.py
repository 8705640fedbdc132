"""Errors about checkpoint folders."""

from __future__ import annotations

from lookout.errors import LookoutError


class ModelError(LookoutError, ValueError):
    """A folder that is no checkpoint."""


class SamplingError(LookoutError, ValueError):
    """Sample rate, stride and window that do not fit together."""
