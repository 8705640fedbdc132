"""One camera or video on a model that others share: frames in, answers out, no Kafka (docs/session.md)."""

from lookout.session.errors import DeadlineError as DeadlineError, SessionError as SessionError
from lookout.session.host import EngineHost as EngineHost, HostSettings as HostSettings
from lookout.session.session import Session as Session
from lookout.session.types import SessionAnswer as SessionAnswer, SessionWindow as SessionWindow
