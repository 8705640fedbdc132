"""`lookout verify --since` reads from an offset, and everything where that is not enough."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lookout.local import KafkaServer
from lookout.runtime.worker import load_settings
from lookout.services.prefill.settings import PrefillSettings
from lookout.streams.chains import PastScope
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import TOKENS, VERDICTS, to_json

pytestmark = [pytest.mark.fleet, pytest.mark.long]

module = importlib.import_module("lookout.streams.chains.epochs")
verify = importlib.import_module("lookout.past.verification.verify")

HOURS, STRIDES_AN_HOUR = 4, 6
KEY_EVERY = 3


@pytest.fixture(scope="module")
def bootstrap(quick_java: None) -> Iterator[str]:
    """A broker of these tests alone: a record is read by the name of its topic, which none may prefix."""
    with KafkaServer() as server:
        yield server.bootstrap


@pytest.fixture(scope="module")
def begun_ms(bootstrap: str) -> int:
    """Two topics with a few strides in each of the last four hours; the time of the first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [topic.name for topic in (VERDICTS, TOKENS)]
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        made.result()
    begun = round((time.time() - HOURS * 3600) * 1000)
    producer = Producer({"bootstrap.servers": bootstrap})
    for hour in range(HOURS):
        for step in range(STRIDES_AN_HOUR):
            window = hour * STRIDES_AN_HOUR + step
            at = begun + hour * 3_600_000 + step * 2000
            record = TokensRecord(camera="cam", epoch=1)
            record.block.index = window
            verdict = Verdict(
                camera="cam", epoch=1, window=window, watch="fall", since_key=window % KEY_EVERY
            )
            verdict.outcome = Verdict.OUTCOME_ANSWERED
            verdict.end.FromMilliseconds(at)
            producer.produce(names[0], to_json(verdict), key="cam", partition=1, timestamp=at)
            producer.produce(names[1], record.SerializeToString(), key="cam", partition=1, timestamp=at)
    assert producer.flush(60.0) == 0
    return begun


def read(
    bootstrap: str, since_ms: int, monkeypatch: pytest.MonkeyPatch, window_s: float
) -> tuple[int, int, int]:
    """Windows and blocks that were found, and how many records of verdicts.v1 were read for it."""
    seen: Counter[str] = Counter()
    parse = module.committed_verdict

    def counted(message: Message) -> Verdict | None:
        seen["verdicts"] += 1
        found: Verdict | None = parse(message)
        return found

    monkeypatch.setattr(module, "committed_verdict", counted)
    settings = load_settings(
        PrefillSettings, {}, mode="local", bootstrap=bootstrap, window_s=window_s, key_every=KEY_EVERY
    )
    (epoch,) = verify._epochs(settings, PastScope(since_ms=since_ms))
    return len(epoch.verdicts), len(epoch.blocks), seen["verdicts"]


def test_old_records_are_not_read(bootstrap: str, begun_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last hour begins with a key window of one block: the strides of that hour are enough."""
    found = read(bootstrap, begun_ms + 3 * 3_600_000, monkeypatch, window_s=2.0)
    assert found == (STRIDES_AN_HOUR, STRIDES_AN_HOUR, STRIDES_AN_HOUR)


def test_everything_is_read_where_a_chain_begins_earlier(
    bootstrap: str, begun_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first window of the last hour needs a block of the hour before."""
    everything = HOURS * STRIDES_AN_HOUR
    found = read(bootstrap, begun_ms + 3 * 3_600_000, monkeypatch, window_s=4.0)
    assert found == (everything, everything, STRIDES_AN_HOUR + everything)


def test_without_a_time_everything_is_read(
    bootstrap: str, begun_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = HOURS * STRIDES_AN_HOUR
    assert read(bootstrap, 0, monkeypatch, window_s=2.0) == (everything, everything, everything)
