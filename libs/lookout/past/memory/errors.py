"""Errors of memories."""

from __future__ import annotations

from lookout.errors import LookoutError


class HistoryError(LookoutError, RuntimeError):
    """A memory cannot do what it was asked to; the message says what, where and why."""


class DamagedMemoryError(HistoryError):
    """A memory's file does not contain what was written to it; the message names the file and what is
    lost."""


class OwnedMemoryError(HistoryError):
    """Another process is writing the memory."""


class CutShortError(HistoryError):
    """The bytes end before the record does."""
