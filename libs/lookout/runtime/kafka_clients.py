"""Kafka clients that follow the files with their user name and password.

librdkafka takes a password when a client is created. If the password changes in its file (a mounted secret),
this module hands the new one to the running clients. Each uses it at its next connection, or when the broker
asks again (`connections.max.reauth.ms`). No client is recreated and no connection is closed. All of Lookout
creates its clients here. Certificates and the secret of OAUTHBEARER are read once, when a client is created:
librdkafka accepts no others later.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self

import confluent_kafka
import confluent_kafka.admin

from lookout.errors import StartupError

#: seconds between two readings of the files
READ_EVERY_S: Final = 2.0
_log = logging.getLogger("kafka.login")


#: the group's coordinator moves, or is still loading offsets; the client does not retry by itself
_COORDINATOR_MOVES = frozenset(
    {
        confluent_kafka.KafkaError.NOT_COORDINATOR,
        confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


def coordinator_moves(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later, because a group's coordinator moves or starts."""
    return isinstance(error, confluent_kafka.KafkaException) and error.args[0].code() in _COORDINATOR_MOVES


def error_text(error: confluent_kafka.KafkaError) -> str:
    """Return the text of a Kafka error; if it is empty or ends with a colon, add the meaning of its code."""
    text = str(error.str()).strip()
    meaning = str(confluent_kafka.KafkaError(error.code()).str())
    return f"{text} {meaning}".strip() if not text or text.endswith(":") else text


Login = Callable[[], tuple[str, str]]
"""Reads the current user name and password from their files; raises `StartupError` if it cannot."""


class FilePassword(str):
    """A password that knows how to read itself again. librdkafka takes it as any other text."""

    login: Login

    def __new__(cls, text: str, login: Login) -> Self:
        """Make a password of its current text; `login` reads user name and password again."""
        password = super().__new__(cls, text)
        password.login = login
        return password


class _Client(Protocol):
    def take_login(self, user: str, password: str) -> None:
        """Use this login from now on. Called by the thread that reads the files."""


class _Logins:
    """The logins of this process's clients; one thread reads all files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: how to read each client's login, and the login that it used last
        self._clients: weakref.WeakKeyDictionary[Any, tuple[Login, tuple[str, str]]]
        self._clients = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._why = ""

    def add(self, client: _Client, options: Mapping[str, Any]) -> None:
        password = options.get("sasl.password")
        if not isinstance(password, FilePassword):
            return
        with self._lock:
            self._clients[client] = (password.login, (str(options["sasl.username"]), str(password)))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="kafka-login", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(READ_EVERY_S)
            with self._lock:
                clients = list(self._clients.items())
            for client, (login, last) in clients:
                self._follow(client, login, last)
            # Between two readings only the dictionary of weak references may refer to a client.
            del clients
            client = None

    def _follow(self, client: _Client, login: Login, last: tuple[str, str]) -> None:
        try:
            now = login()
            self._why = ""
            if now == last:
                return
            client.take_login(*now)
        except (StartupError, confluent_kafka.KafkaException) as error:  # the thread goes on for the others
            self._complain(str(error))
            return
        except RuntimeError:  # it was closed
            with self._lock:
                self._clients.pop(client, None)
            return
        with self._lock:
            self._clients[client] = (login, now)
        _log.info("Kafka's user or password has changed: clients log in with the new one")

    def _complain(self, why: str) -> None:
        if why != self._why:
            _log.warning("cannot read Kafka's user or password, the previous login stays in use: %s", why)
        self._why = why


_logins = _Logins()


class _LogsIn:
    """A client that accepts a new login at any time and uses it for its next connection."""

    def __init__(self, options: Mapping[str, Any], **more: Any) -> None:
        super().__init__(dict(options), **more)  # type: ignore[call-arg]  # of the class behind this one
        _logins.add(self, options)

    def take_login(self, user: str, password: str) -> None:
        """Use this login from the next connection on."""
        self.set_sasl_credentials(user, password)  # type: ignore[attr-defined]


class Producer(_LogsIn, confluent_kafka.Producer):  # type: ignore[misc]  # it has no types
    """confluent_kafka's producer, with logins that follow their files."""


class AdminClient(_LogsIn, confluent_kafka.admin.AdminClient):  # type: ignore[misc]
    """confluent_kafka's admin client, with logins that follow their files."""


def _behind_login(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a consumer so that it applies a pending login first."""

    @functools.wraps(call)
    def logged_in(self: Consumer, *arguments: Any, **more: Any) -> Any:
        if (login := self.login) is not None:
            self.login = None
            self.set_sasl_credentials(*login)
        return call(self, *arguments, **more)

    return logged_in


class Consumer(confluent_kafka.Consumer):  # type: ignore[misc]
    """confluent_kafka's consumer, with logins that follow their files.

    Only one thread may use it at a time, and a thread that polls in a loop keeps the others out. A new login
    therefore waits for the next call of the thread that uses the consumer.

    Attributes:
        login: The user name and password to apply at that call.
    """

    def __init__(self, options: Mapping[str, Any], **more: Any) -> None:
        super().__init__(dict(options), **more)
        self.login: tuple[str, str] | None = None
        _logins.add(self, options)

    def take_login(self, user: str, password: str) -> None:
        """Use this login for connections made after the next call."""
        self.login = (user, password)

    poll = _behind_login(confluent_kafka.Consumer.poll)
    consume = _behind_login(confluent_kafka.Consumer.consume)
    list_topics = _behind_login(confluent_kafka.Consumer.list_topics)
    committed = _behind_login(confluent_kafka.Consumer.committed)
    offsets_for_times = _behind_login(confluent_kafka.Consumer.offsets_for_times)
