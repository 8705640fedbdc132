"""Errors of sessions."""

from __future__ import annotations

from lookout.errors import LookoutError


class SessionError(LookoutError, ValueError):
    """A session cannot do what was asked; its state is unchanged."""


class DeadlineError(SessionError, TimeoutError):
    """The deadline passed before the engine began; the session is unchanged."""
