"""Errors about checkpoint folders and sampling."""

from __future__ import annotations

from lookout.errors import LookoutError


class ModelError(LookoutError, ValueError):
    """The folder is not a usable checkpoint, or the device cannot run one."""


class SamplingError(LookoutError, ValueError):
    """Sample rate, stride and window do not fit together."""
