"""Strange records in every topic of the installation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from google.protobuf.message import Message

from lookout.cli.connect import read_erasures
from lookout.past.erasures import ErasureLog
from lookout.v1.erasures_pb2 import Erasure, ErasureConfirmation, ErasureMember
from lookout.v1.lineage_pb2 import RecordRef, TensorRef
from lookout.v1.recordings_pb2 import (
    BacktestPart,
    PartSpan,
    RecordingOutcome,
    RecordingPart,
    RecordingPlan,
)
from lookout.wire import ERASURES, SEGMENTS, all_topics, is_json, message_kind, to_json
from tests import mutations
from tests.fleet.strangers.tally import Door, Tally

#: strangers' cameras: they share the honest ones' partitions and never their names
CAMERAS: Final = tuple(f"strange-{number}" for number in range(40))
#: inputs of one way, 30,000 in all; ways that send a megabyte a record or cost a decoder are fewer
MANY, SOME, FEW = 34, 20, 4
_LARGE: Final = frozenset({"large-text", "long-list", "nested", "long-key", "large-header"})
Headers = list[tuple[str, bytes | None]]
Chance = random.Random


@dataclass(frozen=True, slots=True)
class Draft:
    """A record before it is sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


#: what is wrong beside the value, in any topic
ENVELOPES: Final[dict[str, Callable[[Draft, Chance], Draft]]] = {
    "no-key": lambda draft, chance: replace(draft, key=None),
    "empty-key": lambda draft, chance: replace(draft, key=b""),
    "key-not-utf8": lambda draft, chance: replace(draft, key=b"\xff\xfe" + chance.randbytes(8)),
    "long-key": lambda draft, chance: replace(draft, key=b"k" * 100_000),
    "strange-key": lambda draft, chance: replace(draft, key=chance.choice(mutations.TEXTS).encode() or b"\0"),
    "no-value": lambda draft, chance: replace(draft, value=None),
    "strange-headers": lambda draft, chance: replace(draft, headers=_strange_headers(chance)),
    "large-header": lambda draft, chance: replace(draft, headers=[("traceparent", b"0" * 400_000)]),
}


def _set(**fields: object) -> Callable[[Any], object]:
    """What gives a message other fields."""

    def spoil(message: Any) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return spoil


def _size(ref: Any) -> None:
    del ref.shape[:]
    ref.shape.extend([2**31 - 1] * 8)


#: by kind of reference: ways to refer to what no stage has written
REFERENCES: Final[dict[type[Message], dict[str, Callable[[Any], object]]]] = {
    RecordRef: {
        "before the beginning": _set(offset=-1),
        "behind the end": _set(offset=2**53),
        "partition next to the last": _set(partition=4),
        "partition far away": _set(partition=10**9),
        "no topic": _set(topic=""),
        "topic that does not exist": _set(topic="nowhere.v1"),
        "Kafka's own topic": _set(topic="__consumer_offsets"),
    },
    TensorRef: {
        "another stage": _set(stage=3),
        "another camera": _set(camera="cam-00"),
        "another epoch": _set(epoch=7),
        "no dtype": _set(dtype="object"),
        "size": _size,
    },
    BacktestPart: {
        "partition far away": _set(partition=10**9),
        "behind the end": _set(first=2**53 - 1, stop=2**53, read_from=2**53 - 1),
        "backwards": _set(first=9, stop=3),
    },
    PartSpan: {"backwards": _set(first=9, stop=3), "without end": _set(stop=2**53)},
    RecordingPlan: {"more parts than it has": _set(parts=4096)},
    RecordingOutcome: {"another partition": _set(place=10**6)},
    RecordingPart: {"home far away": _set(home=10**9)},
}
_HEADERS: Final = (
    *("captured-at", "traceparent", "content-type", "ce_id", "ce_type", "ce_subject", "ce_time"),
    *("lookout-reason", "lookout-detail", "lookout-source-offset", "lookout-records", "lookout-restarts"),
)


def _strange_headers(chance: Chance) -> Headers:
    values = [text.encode() for text in mutations.TEXTS] + [b"9" * 5000, b"-1", b"\xff", b"NaN"]
    return [
        (chance.choice(_HEADERS), chance.choice((*values, None))) for _ in range(chance.choice((1, 5, 300)))
    ]


def _segments(film: Sequence[bytes], chance: Chance) -> dict[str, Callable[[], Draft]]:
    """Strange segments, by way."""

    def draft(value: bytes | None, *headers: tuple[str, bytes | None]) -> Draft:
        return Draft(SEGMENTS.name, chance.choice(CAMERAS).encode(), value, list(headers))

    def uri(text: str) -> Draft:
        return draft(text.encode("utf-8", "replace"), ("content-type", b"text/uri-list"))

    changed = {
        name: (lambda change=change: draft(change(chance.choice(film), Message, chance)))
        for name, change in mutations.BYTES.items()
    }
    boxes = (
        b"\x00\x00\x00\x01ftyp" + b"\xff" * 8 + b"moov" + b"\xff" * 200,
        b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isomiso2\xff\xff\xff\xffmoov" + b"\0" * 400,
        b"\x1a\x45\xdf\xa3\x01\xff\xff\xff\xff\xff\xff\xff" + b"\x18\x53\x80\x67" * 50,
        b"RIFF\xff\xff\xff\xffAVI LIST\xff\xff\xff\xffhdrlavih" + b"\xff" * 300,
        b"\x00\x00\x00\x01\x67" + b"\xff" * 400,
        b"FLV\x01\x05\x00\x00\x00\x09" + b"\xff" * 300,
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"\x89PNG\r\n\x1a\n" + b"\xff" * 200,
        b"PK\x03\x04" + b"\0" * 200,
    )
    times = (b"1700000000", b"1700000000000000", b"-1", b"9" * 5000, b"\x1b[2J", b"", b"NaN")
    uris = (
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost:1/x",
        "https://[::1]/x",
        "http://user:password@127.0.0.1/x",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "http://127.0.0.1\r\nHost: x/",
        "x" * 100_000,
        "http://" + "a." * 5000,
        "\x1b]0;title\x07",
        "\u202e",
        "http://a\nhttp://b",
        "",
    )
    return {
        **changed,
        "container-head": lambda: draft(chance.choice(boxes) + chance.randbytes(chance.choice((0, 500)))),
        "two-cameras-mixed": lambda: draft(chance.choice(film)[:3000] + chance.choice(film)[3000:]),
        "zeros": lambda: draft(bytes(chance.choice((188, 100_000)))),
        "strange-uri": lambda: uri(chance.choice(uris)),
        "strange-captured-at": lambda: draft(chance.choice(film), ("captured-at", chance.choice(times))),
        "honest-footage": lambda: draft(chance.choice(film), ("captured-at", b"1700000000000")),
        **{
            name: (lambda change=change: change(draft(chance.choice(film)[:2000]), chance))
            for name, change in ENVELOPES.items()
        },
    }


def _messages(
    topic: str, kind: type[Message], bases: Sequence[bytes], chance: Chance
) -> dict[str, Callable[[], Draft]]:
    """Strange messages in a topic, by way; bases are honest records under strange names."""
    changes = mutations.JSON if is_json(topic) else mutations.BINARY

    def draft(value: bytes | None) -> Draft:
        return Draft(topic, chance.choice(CAMERAS).encode(), value)

    def epoch_ahead() -> Draft:
        message = mutations.filled(kind, chance.choice(CAMERAS), chance)
        if kind.DESCRIPTOR.fields_by_name.get("epoch"):
            message.epoch = 2**53 - chance.randint(0, 5)  # type: ignore[attr-defined]
        return draft(to_json(message) if is_json(topic) else message.SerializeToString())

    def referring(spoil: Callable[[Any], object], wanted: type[Message]) -> Draft:
        """A message that could be honest but for what it refers to, under the key that it needs."""
        message: Any = mutations.filled(kind, chance.choice(CAMERAS), chance)
        if kind.DESCRIPTOR.fields_by_name.get("epoch"):
            message.epoch = 1_000_000
        for ref in mutations.messages(message, TensorRef):
            ref.camera, ref.epoch = message.camera, message.epoch
        for ref in mutations.messages(message, wanted):
            spoil(ref)
        value = to_json(message) if is_json(topic) else message.SerializeToString()
        key = getattr(message, "camera", "") or getattr(message, "job", "") or chance.choice(CAMERAS)
        return Draft(topic, key.encode(), value)

    def references() -> dict[str, Callable[[], Draft]]:
        message = mutations.filled(kind, CAMERAS[0], chance)
        return {
            f"{wanted.DESCRIPTOR.name} {name}": lambda spoil=spoil, wanted=wanted: referring(spoil, wanted)
            for wanted, ways in REFERENCES.items()
            if any(True for _ in mutations.messages(message, wanted))
            for name, spoil in ways.items()
        }

    return {
        **references(),
        **{
            name: (lambda change=change: draft(change(chance.choice(bases), kind, chance)))
            for name, change in changes.items()
        },
        **{
            name: (lambda change=change: change(draft(chance.choice(bases)), chance))
            for name, change in ENVELOPES.items()
        },
        "epoch-of-the-future": epoch_ahead,
        "honest-copy": lambda: draft(chance.choice(bases)),
    }


def _dead(topic: str, chance: Chance) -> dict[str, Callable[[], Draft]]:
    """Strange dead letters: their readers are people and pages."""

    def draft() -> Draft:
        return Draft(topic, chance.choice(CAMERAS).encode(), chance.randbytes(50), _strange_headers(chance))

    return {
        "noise": draft,
        **{name: (lambda change=change: change(draft(), chance)) for name, change in ENVELOPES.items()},
    }


def erasures(bootstrap: str, chance: Chance) -> dict[str, Callable[[], Draft]]:
    """Attempts to undo erasures: what stands in the topic, deleted, replaced or said by somebody else."""
    log = read_erasures(bootstrap) if bootstrap else ErasureLog()
    identities = [*log.erasures, "e-none"]
    members = [*log.members, "prefill-0"]

    def draft(key: str, message: Message | None) -> Draft:
        return Draft(ERASURES.name, key.encode(), None if message is None else to_json(message))

    def erasure() -> str:
        return chance.choice(identities)

    def narrow() -> Draft:
        identity = erasure()
        return draft(identity, Erasure(id=identity, camera="erased-0", end_us=1, signature="0" * 64))

    def confirmed() -> Draft:
        done = ErasureConfirmation(erasure=erasure(), instance=chance.choice(members), service="prefill")
        return draft(f"{done.erasure}@{done.instance}", done)

    def left() -> Draft:
        member = ErasureMember(instance=chance.choice(members), announced_us=2**52, left=True)
        return draft(f"@{member.instance}", member)

    def blinded() -> Draft:
        """An erasure of an honest camera, up to the far future."""
        identity = f"e-{chance.randrange(10**6)}"
        return draft(identity, Erasure(id=identity, camera="cam-00", end_us=2**52, requested_us=2**52))

    return {
        "request deleted": lambda: draft(erasure(), None),
        "member deleted": lambda: draft(f"@{chance.choice(members)}", None),
        "request narrowed": narrow,
        "confirmation forged": confirmed,
        "departure forged": left,
        "honest camera erased": blinded,
    }


def drafts(
    film: Sequence[bytes], harvest: Mapping[str, Sequence[bytes]], chance: Chance
) -> dict[str, dict[str, Callable[[], Draft]]]:
    """By topic and way what makes one strange record.

    Args:
        film: Honest segments.
        harvest: By topic honest records of this fleet, already under strangers' names.
        chance: Of every choice.
    """
    out = {}
    for topic in all_topics():
        kind = message_kind(topic.name)
        if topic.name == SEGMENTS.name:
            out[topic.name] = _segments(film, chance)
        elif kind is None:
            out[topic.name] = _dead(topic.name, chance)
        else:
            own = mutations.filled(kind, CAMERAS[0], chance)
            base = to_json(own) if is_json(topic.name) else own.SerializeToString()
            out[topic.name] = _messages(topic.name, kind, [base, *harvest.get(topic.name, ())], chance)
    return out


def doors(
    bootstrap: str,
    options: Mapping[str, Any],
    makers: Mapping[str, Mapping[str, Callable[[], Draft]]],
    tally: Tally,
) -> Iterable[Door]:
    """A door for each topic, all with one producer.

    Args:
        bootstrap: The fleet's broker.
        options: librdkafka options with which one may write there.
        makers: What makes records, by topic and way.
        tally: For inputs that cannot be sent.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.max.bytes": 17 << 20,
            "queue.buffering.max.kbytes": 256 << 10,
            "linger.ms": 5,
            "log_level": 0,
            **options,
        }
    )

    def send(kind: str, make: Callable[[], Draft]) -> None:
        draft = make()
        tally.inputs[kind] += 1
        try:
            producer.produce(draft.topic, draft.value, key=draft.key, headers=draft.headers)  # type: ignore[arg-type]
        except (KafkaException, BufferError):  # larger than the client sends: one input all the same
            producer.flush(30.0)
        producer.poll(0)

    for topic, ways in makers.items():
        yield Door(
            topic,
            {
                way: (
                    lambda kind=f"{topic} {way}", make=make: send(kind, make),
                    FEW if way in _LARGE else SOME if topic == SEGMENTS.name else MANY,
                )
                for way, make in ways.items()
            },
            lambda: producer.flush(60.0),
        )
