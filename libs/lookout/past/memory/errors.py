"""Errors of memories."""

from __future__ import annotations

from lookout.errors import LookoutError


class HistoryError(LookoutError, RuntimeError):
    """An operation on a memory failed; the message says what failed, where and why."""


class DamagedMemoryError(HistoryError):
    """A memory's file is missing or does not contain what was written to it; the message names the file."""


class OwnedMemoryError(HistoryError):
    """Another process owns the memory, so this process cannot change it."""


class CutShortError(HistoryError):
    """The data end before the record's end."""
