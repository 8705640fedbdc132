"""Errors of sessions."""

from __future__ import annotations

from lookout.errors import LookoutError


class SessionError(LookoutError, ValueError):
    """The session cannot do what was requested. The session is unchanged."""


class DeadlineError(SessionError, TimeoutError):
    """The deadline passed before the engine started the work. The session is unchanged."""
