"""Addresses and Kafka clients for the commands."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from lookout.administration.writing import CONFIRM_S, WriteError, Writer
from lookout.cli.options import CliError, Position, in_utf8
from lookout.cli.output import TerminalConsole, say
from lookout.runtime.kafka_clients import AdminClient, Producer, error_text
from lookout.wire import ERASURES, MASKS, MAX_MESSAGE_BYTES, key_text

if TYPE_CHECKING:
    from lookout.past.erasures.records import ErasureLog
    from lookout.past.erasures.signing import ErasureSigner
    from lookout.rules.masks import Masks
    from lookout.runtime.net import GrpcSecurity
    from lookout.runtime.store.mask_signing import MaskSigner, SignedMasks

T = TypeVar("T")

_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
_ANSWER_S = 10.0
#: seconds for all requests to Kafka together before records are read
_OPEN_S = 30.0
#: seconds from a failed connection until Kafka counts as lost, and then between checks of whether it is back
_OUTAGE_S = 2.0
#: milliseconds that Kafka may delay its answer to a fetch while it has no record
_WAIT_MS = 100


def find_bootstrap(given: str | None) -> str:
    """Return Kafka's address: `given`, otherwise LOOKOUT_KAFKA, otherwise that of the only running local
    fleet.

    Raises:
        CliError: No fleet runs, several do, or the address is not valid UTF-8.
    """
    if address := given or os.environ.get("LOOKOUT_KAFKA"):
        return in_utf8("--bootstrap", address)  # librdkafka fails silently on other text
    from lookout.local import running_fleets

    fleets = running_fleets()
    if len(fleets) == 1:
        return fleets[0].bootstrap
    if not fleets:
        raise CliError("no Kafka is known: start a fleet with `lookout up`, or give --bootstrap host:port")
    addresses = ", ".join(fleet.bootstrap for fleet in fleets)
    raise CliError(f"several fleets run on this machine: choose one with --bootstrap ({addresses})")


class LibraryErrors:
    """Collects librdkafka's error messages; the last one explains a failure."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, error: object) -> None:
        if self.last and isinstance(error, KafkaError) and error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # a message without a further reason
        words = str(error.str() if hasattr(error, "str") else error)
        self.last = words.split(" (after ", 1)[0]  # cut off the client's state and the number of repetitions

    def explained(self, error: KafkaError) -> str:
        """Return why a record was not accepted; for a timeout, which does not say why, librdkafka's last
        error.
        """
        return f"{error.str()}; {self.last}" if self.last else error.str()


def client_options(bootstrap: str, complaints: LibraryErrors | None = None) -> dict[str, object]:
    """Return the options of every Kafka client of the commands, with the security settings.

    Raises:
        CliError: A Kafka security setting is wrong.
    """
    return {
        "bootstrap.servers": bootstrap,
        **_security(bootstrap),
        "log_level": 0,
        "error_cb": complaints or LibraryErrors(),
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.max.ms": 1000,
    }


def _security(bootstrap: str) -> dict[str, str]:
    from lookout.local.addresses import kafka_login, running_fleets

    # A broker that `lookout up` started has its own settings, which override the environment.
    for fleet in running_fleets():
        if fleet.bootstrap == bootstrap and fleet.own_kafka:
            try:
                return kafka_login(fleet.security)
            except OSError as error:
                raise CliError(f"the password of Kafka at {bootstrap} cannot be read: {error}") from None
    from lookout.errors import StartupError
    from lookout.runtime.net import KafkaSecurity, load_connections

    try:
        return load_connections(KafkaSecurity).kafka_security()
    except StartupError as error:
        raise CliError(str(error)) from None


def kafka_settings(bootstrap: str) -> dict[str, Any]:
    """Return Kafka settings as a stage has them: the local fleet's, otherwise LOOKOUT_KAFKA_*.

    Raises:
        CliError: A Kafka security setting is wrong.
    """
    from lookout.errors import StartupError
    from lookout.local.addresses import running_fleets
    from lookout.runtime.net import KafkaSecurity, load_connections

    for fleet in running_fleets():
        if fleet.bootstrap == bootstrap and fleet.own_kafka:
            return {name: value for name, value in fleet.security.items() if name.startswith("kafka_")}
    try:
        return load_connections(KafkaSecurity).model_dump(exclude_unset=True)
    except StartupError as error:
        raise CliError(str(error)) from None


def grpc_security(bootstrap: str) -> GrpcSecurity:
    """Return the gRPC security settings of the fleet at `bootstrap`: the local fleet's token, otherwise
    LOOKOUT_GRPC_*.

    Raises:
        CliError: A gRPC security setting is wrong.
    """
    from lookout.errors import StartupError
    from lookout.local import running_fleets
    from lookout.runtime.net import GrpcSecurity, load_connections

    try:
        for fleet in running_fleets():
            if fleet.bootstrap == bootstrap and fleet.grpc_token_file is not None:
                return load_connections(GrpcSecurity, {"LOOKOUT_GRPC_TOKEN_FILE": fleet.grpc_token_file})
        return load_connections(GrpcSecurity)
    except StartupError as error:
        raise CliError(str(error)) from None


def check_reachable(bootstrap: str, topic: str | None = None) -> None:
    """Check that a broker answers.

    Raises:
        CliError: No broker answers, or `topic` does not exist.
    """
    complaints = LibraryErrors()
    client = Producer(client_options(bootstrap, complaints))
    try:
        topics = client.list_topics(timeout=_ANSWER_S).topics
    except KafkaException as error:
        why = complaints.last or error_text(error.args[0])
        raise CliError(f"Kafka at {bootstrap} does not answer ({why}): check that the fleet runs") from error
    if topic is not None and topic not in topics:
        raise CliError(
            f"Kafka at {bootstrap} has no topic {topic}: `lookout up` creates it here, the chart in a cluster"
        )


def has_topic(bootstrap: str, topic: str) -> bool:
    """Whether a topic exists; a fleet of an earlier release may lack it."""
    return topic in Producer(client_options(bootstrap)).list_topics(timeout=_ANSWER_S).topics


def make_producer(
    bootstrap: str, complaints: LibraryErrors | None = None, timeout_s: float = CONFIRM_S
) -> Producer:
    """Return an idempotent producer that accepts whole segments.

    Args:
        bootstrap: Kafka's address.
        complaints: Collects the client's connection errors.
        timeout_s: Seconds after which a record without an answer has failed.
    """
    return Producer(
        {
            **client_options(bootstrap, complaints),
            "enable.idempotence": True,
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "queue.buffering.max.kbytes": 128 << 10,
            "linger.ms": 5,
            "delivery.timeout.ms": round(timeout_s * 1000),
        }
    )


def read_erasures(bootstrap: str) -> ErasureLog:
    """Return the erasures in the topic; none if the fleet is of an earlier release without it.

    If this machine has the fleet's token, records that the fleet did not sign are omitted.
    """
    from lookout.past.erasures.records import ErasureLog, read_log

    if not has_topic(bootstrap, ERASURES.name):
        return ErasureLog()
    with reading(bootstrap, [ERASURES.name], Position(oldest=True)) as reader:
        rows = ((message.key() or b"", message.value()) for message in reader.until_now())
        return read_log(rows, erasure_signer(bootstrap))


def fleet_masks(bootstrap: str) -> Masks:
    """Return the cameras' current privacy masks; empty if the fleet is of an earlier release without the
    topic.
    """
    from lookout.rules.masks import Masks

    return Masks(signed_masks(bootstrap).newest)


def signed_masks(bootstrap: str) -> SignedMasks:
    """Return the masks in the topic; none if the fleet is of an earlier release without it.

    If this machine has the fleet's token, records that the fleet did not sign are omitted.
    """
    from lookout.runtime.store.mask_signing import SignedMasks

    signed = SignedMasks(mask_signer(bootstrap))
    if has_topic(bootstrap, MASKS.name):
        with reading(bootstrap, [MASKS.name], Position(oldest=True)) as reader:
            for message in reader.until_now():
                signed.take(key_text(message.key() or b""), message.value())
    return signed


def erasure_signer(bootstrap: str) -> ErasureSigner:
    """Return the signer of erasures, which uses the fleet's token if this machine has it."""
    from lookout.past.erasures.signing import ErasureSigner

    return ErasureSigner.of(grpc_security(bootstrap))


def mask_signer(bootstrap: str) -> MaskSigner:
    """Return the signer of masks, which uses the fleet's token if this machine has it."""
    from lookout.runtime.store.mask_signing import MaskSigner

    return MaskSigner.of(grpc_security(bootstrap))


def check_signs(bootstrap: str, signer: ErasureSigner | MaskSigner) -> None:
    """Check that this machine has the fleet's token if the fleet uses one.

    Raises:
        CliError: The token is missing.
    """
    if not signer.signs and any(member.signature for member in read_erasures(bootstrap).members.values()):
        raise CliError(
            "the fleet accepts only signed erasures and masks: give its token with LOOKOUT_GRPC_TOKEN_FILE"
        )


class Outage:
    """Reports once when Kafka cannot be reached, and once when it is back.

    A client that loses its broker retries silently for ever. `failed` receives the client's connection
    errors; `news` then checks whether Kafka still answers, through another broker or a new connection.

    Args:
        options: Options of a Kafka client (`client_options`).
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._bootstrap, self._client = options["bootstrap.servers"], AdminClient(options)
        self._lost, self._ask_at = False, float("inf")
        self._complaints = LibraryErrors()

    def failed(self, error: object) -> None:
        """Handle a failed connection (librdkafka's `error_cb`, called while a client is polled)."""
        self._complaints(error)
        self._ask_at = min(self._ask_at, time.monotonic())

    def news(self) -> str | None:
        """Return a sentence about what has changed; None if nothing has.

        Waits for an answer from Kafka if a connection failed; otherwise returns at once.
        """
        if time.monotonic() < self._ask_at:
            return None
        answers = self._answers()
        self._ask_at = float("inf") if answers else time.monotonic() + _OUTAGE_S
        if self._lost != answers:
            return None
        self._lost = not answers
        if answers:
            return f"Kafka at {self._bootstrap} answers again"
        why = self._complaints.last
        return f"Kafka at {self._bootstrap} cannot be reached ({why}): waiting until it is back"

    def tell(self) -> None:
        """Print the news on standard error."""
        if (sentence := self.news()) is not None:
            mark = "[yellow]![/]" if self._lost else "[green]✓[/]"
            say(TerminalConsole(stderr=True), f"{mark} {{}}", sentence)

    def _answers(self) -> bool:
        try:
            self._client.list_topics(timeout=_OUTAGE_S)
        except KafkaException:
            return False
        return True


class CommittedReader:
    """Reads every partition of topics without a consumer group, committed records only.

    Verdicts and alerts of a time that was erased before the reader was created are omitted.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: list[str],
        start: Position,
        options: Mapping[str, object] | None = None,
    ) -> None:
        from lookout.past.erasures.fence import Fence
        from lookout.past.erasures.spans import FENCED_TOPICS
        from lookout.runtime.worker.topic_reader import BEGINNING, ClientOptions, TopicReader

        self._bootstrap, self._deadline = bootstrap, time.monotonic() + _OPEN_S
        shows = any(topic in FENCED_TOPICS for topic in topics)
        self._fence = Fence(read_erasures(bootstrap).erasures.values()) if shows else Fence()
        self._outage = Outage(client_options(bootstrap))
        access = ClientOptions({**client_options(bootstrap), "error_cb": self._outage.failed})
        own = {
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
            "fetch.wait.max.ms": _WAIT_MS,
        }
        self._reader = TopicReader(access, "lookout-cli", options={**own, **(options or {})})
        self._topics = topics
        try:
            self._starts = {} if start.oldest else self._begin(start)
            self._ask(self._reader.follow, dict.fromkeys(topics, BEGINNING), self._starts)
        except BaseException:
            self._reader.close()
            raise

    def poll(self, timeout: float) -> Message | None:
        """Return the next record, or None if there was none within `timeout` seconds.

        If the connection fails, the call waits until Kafka is back. Standard error says when Kafka is lost
        and when it is back.
        """
        message = self._reader.record(timeout)
        self._outage.tell()
        return None if message is None or self._hidden(message) else message

    def _hidden(self, message: Message) -> bool:
        from lookout.past.erasures.spans import FENCED_TOPICS, span_of
        from lookout.runtime.worker.record_reader import record_of

        topic, camera = str(message.topic()), key_text(message.key() or b"")
        if topic not in FENCED_TOPICS or not self._fence.of(camera):
            return False
        return self._fence.hides(camera, *span_of(record_of(message))) is not None

    def until_now(self) -> Iterator[Message]:
        """Yield the records that are in the topics now, and then end.

        Raises:
            CliError: The broker stopped answering before the end.
        """
        self._deadline = time.monotonic() + _OPEN_S
        ends = self._edges(partial(self._reader.ends, committed=True))
        deadline = time.monotonic() + 3 * _ANSWER_S
        while any(self._at(place) < end for place, end in ends.items()):
            if (message := self._reader.record(0.2)) is not None:
                deadline = time.monotonic() + 3 * _ANSWER_S
                if not self._hidden(message):
                    yield message
            if time.monotonic() > deadline:
                raise CliError("Kafka stopped answering while a topic was read: check that the broker runs")

    def close(self) -> None:
        self._reader.close()

    def _at(self, place: tuple[str, int]) -> int:
        """Return the offset that is read next."""
        return self._reader.positions.get(place, self._starts.get(place, 0))

    def _begin(self, start: Position) -> dict[tuple[str, int], int]:
        """Return the offset at which each partition begins."""
        if start.at_ms is None:
            # Start at the first record of an open transaction, because its records count as new once it
            # commits.
            return self._edges(partial(self._reader.ends, committed=True))
        at_ms = start.at_ms
        return self._edges(lambda topic, numbers, left_s: self._reader.at(topic, numbers, at_ms, left_s))

    def _edges(self, ask: Callable[[str, list[int], float], dict[int, int]]) -> dict[tuple[str, int], int]:
        """Return the offset that `ask` requests, for each partition. One request covers all partitions of a
        topic, because a broker under load takes seconds per request.

        Raises:
            CliError: A topic does not exist, or Kafka does not answer in time.
        """
        known = self._ask(self._reader.known, self._topics)
        for topic in self._topics:
            if topic not in known:
                raise CliError(
                    f"Kafka has no topic {topic}: `lookout up` creates it; `lookout doctor` shows more"
                )
        return {
            (topic, number): offset
            for topic, numbers in known.items()
            for number, offset in self._ask(ask, topic, numbers).items()
        }

    def _ask(self, ask: Callable[..., T], *about: object) -> T:
        """Return the answer of `ask`; ask again if a partition was just created and has no leader yet.

        Raises:
            CliError: Kafka does not answer in time.
        """
        while True:
            left_s = min(_ANSWER_S, self._deadline - time.monotonic())
            try:
                if left_s <= 0:
                    raise TimeoutError(f"no answer within {_OPEN_S:g} s")
                return ask(*about, left_s)
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, TimeoutError):
                    why = str(error)
                elif error.args[0].code() not in _NO_LEADER_YET:
                    why = error_text(error.args[0])
                else:
                    time.sleep(0.1)
                    continue
                raise CliError(f"Kafka at {self._bootstrap} does not answer: {why}") from error


@contextmanager
def reading(bootstrap: str, topics: list[str], start: Position) -> Iterator[CommittedReader]:
    """Open a CommittedReader, and close it at the end."""
    reader = CommittedReader(bootstrap, topics, start)
    try:
        yield reader
    finally:
        reader.close()


def send_and_confirm(
    bootstrap: str,
    topic: str,
    records: Mapping[str, bytes | None] | Mapping[bytes, bytes | None],
    on_done: Callable[[str], None] | None = None,
    timeout_s: float = CONFIRM_S,
) -> None:
    """Write records (None deletes) and wait until Kafka has them.

    Raises:
        CliError: Kafka rejected a record.
    """
    complaints = LibraryErrors()
    writer = Writer(client_options(bootstrap, complaints), complaints.explained, timeout_s)
    try:
        writer.write(topic, records, on_done=on_done)
    except WriteError as error:
        raise CliError(str(error)) from None


def hand_over(producer: Producer, topic: str, check: Callable[[], None] | None = None, **record: Any) -> None:
    """Hand a record to the client; wait while the client's buffer is full.

    The buffer has room again when records are confirmed, or fail at their time limit.

    Args:
        producer: The client.
        topic: Where the record goes.
        check: Called before every attempt; an exception that it raises ends the wait.
        record: Arguments of `Producer.produce`.
    """
    while True:
        if check is not None:
            check()
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(0.1)
            continue
        producer.poll(0)
        return
