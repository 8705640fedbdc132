"""The root of Lookout's errors."""

from __future__ import annotations


class LookoutError(Exception):
    """Every error that Lookout raises on purpose; its message names what, where and why."""
