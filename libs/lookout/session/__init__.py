"""One camera or video on a model that others share: frames in, answers out, no Kafka (docs/session.md)."""

from lookout.session.errors import DeadlineError, SessionError
from lookout.session.host import EngineHost, HostSettings
from lookout.session.session import Session
from lookout.session.types import SessionAnswer, SessionWindow

__all__ = [
    "DeadlineError",
    "EngineHost",
    "HostSettings",
    "Session",
    "SessionAnswer",
    "SessionError",
    "SessionWindow",
]
