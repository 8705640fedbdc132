"""What a session refuses."""

from __future__ import annotations

from lookout.errors import LookoutError


class SessionError(LookoutError, ValueError):
    """A session cannot do what it was asked to; it is as it was before."""


class DeadlineError(SessionError, TimeoutError):
    """The engine did not come to it in time; the session is as it was before."""
