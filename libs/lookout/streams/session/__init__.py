"""Asks questions about one camera or video on a shared model, without Kafka (docs/session.md)."""

from lookout.streams.session.errors import DeadlineError as DeadlineError, SessionError as SessionError
from lookout.streams.session.host import EngineHost as EngineHost, HostSettings as HostSettings
from lookout.streams.session.session import Session as Session
from lookout.streams.session.types import SessionAnswer as SessionAnswer, SessionWindow as SessionWindow
