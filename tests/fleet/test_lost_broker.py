"""Commands that follow a broker which goes away: they say so once, and once that it is back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from lookout.cli import connect
from lookout.cli.connect import Position, client_options, reading, send_and_confirm
from lookout.cli.dead_letters import DeadLetterNews
from lookout.local import KafkaServer, create_topics
from lookout.runtime.worker import topic_reader
from lookout.v1.alerts_pb2 import Alert
from lookout.wire import ALERTS, ANSWERS, WATCHES, to_json
from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long]

_LOST, _BACK = "cannot be reached", "answers again"


@contextmanager
def command(folder: Path, *words: str) -> Iterator[tuple[Path, Path]]:
    """A command in a process of its own, with the files of what it prints and complains."""
    out, complaints = folder / f"{words[0]}.out", folder / f"{words[0]}.err"
    with out.open("wb") as output, complaints.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "lookout.cli", *words], stdout=output, stderr=errors
        )
    try:
        yield out, complaints
    finally:
        process.terminate()
        process.wait(30.0)


def test_a_command_that_follows_says_once_that_its_broker_is_lost_and_once_that_it_is_back(
    own_kafka: KafkaServer, tmp_path: Path
) -> None:
    create_topics(own_kafka.bootstrap, 2)
    address = own_kafka.bootstrap
    alert = Alert(id="1", incident="abc", kind=Alert.KIND_OPENED, camera="gate", question="Is it open?")
    send_and_confirm(address, ALERTS.name, {"gate": to_json(alert)})
    words = ("alerts", "--since", "start", "-b", address)
    with command(tmp_path, *words) as (out, complaints):
        eventually(lambda: out.read_text().count("Is it open?") == 1)
        assert complaints.read_text() == ""
        own_kafka.kill()
        eventually(lambda: _LOST in complaints.read_text())
        time.sleep(6.0)  # connections are tried meanwhile, several times
        assert _BACK not in complaints.read_text()
        own_kafka.start()
        eventually(lambda: _BACK in complaints.read_text())
        send_and_confirm(address, ALERTS.name, {"gate": to_json(alert)})
        eventually(lambda: out.read_text().count("Is it open?") == 2)
        text = complaints.read_text()
    assert (text.count(_LOST), text.count(_BACK)) == (1, 1), text
    assert address in text


def test_growth_and_the_news_of_a_fleet_say_that_the_broker_is_lost_and_that_it_is_back(
    own_kafka: KafkaServer, tmp_path: Path
) -> None:
    create_topics(own_kafka.bootstrap, 2)
    letters = DeadLetterNews(client_options(own_kafka.bootstrap))
    news: list[str] = []

    def said(word: str) -> bool:
        news.extend(letters.news())
        return any(word in sentence for sentence in news)

    with command(tmp_path, "topics", "grow", "-p", "3", "-b", own_kafka.bootstrap) as (_, complaints):
        eventually(lambda: "following cameras" in complaints.read_text())
        assert not said("")
        own_kafka.kill()
        eventually(lambda: said(_LOST) and _LOST in complaints.read_text())
        own_kafka.start()
        eventually(lambda: said(_BACK) and _BACK in complaints.read_text())
    assert len(news) == 2
    assert all(own_kafka.bootstrap in sentence for sentence in news)
    letters.close()


def test_a_reader_without_an_outage_says_nothing(
    own_kafka: KafkaServer, capfd: pytest.CaptureFixture[str]
) -> None:
    create_topics(own_kafka.bootstrap, 2)
    with reading(own_kafka.bootstrap, [ANSWERS.name], Position(oldest=True)) as reader:
        for _ in range(20):
            assert reader.poll(0.1) is None
    assert capfd.readouterr().err == ""


def test_a_reader_follows_partitions_that_are_added(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cameras move to them: `lookout alerts` showed nothing of these any more."""
    monkeypatch.setattr(topic_reader, "LOOK_S", 0.0)
    create_topics(own_kafka.bootstrap, 2)
    with reading(own_kafka.bootstrap, [ALERTS.name], Position()) as reader:
        assert reader.poll(0.1) is None
        admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
        admin.create_partitions([NewPartitions(ALERTS.name, 3)])[ALERTS.name].result()
        # Until the broker's metadata has it, a client drops what is sent to it.
        eventually(lambda: len(admin.list_topics(ALERTS.name).topics[ALERTS.name].partitions) == 3)
        producer = Producer({"bootstrap.servers": own_kafka.bootstrap})
        for partition in range(3):
            producer.produce(ALERTS.name, b"{}", partition=partition)
        assert producer.flush(60.0) == 0
        shown: set[int | None] = set()

        def whole() -> bool:
            if (message := reader.poll(0.1)) is not None:
                shown.add(message.partition())
            return shown == {0, 1, 2}

        eventually(whole)
        assert all(reader.poll(0.1) is None for _ in range(3))


def test_more_records_than_the_client_holds_are_all_confirmed(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's buffer was full at the third record: `BufferError: Local: Queue full`."""
    create_topics(own_kafka.bootstrap, 2)
    tiny = {"queue.buffering.max.messages": 2}
    monkeypatch.setattr(connect, "client_options", lambda *words: {**client_options(*words), **tiny})
    confirmed: list[str] = []
    records = {f"watch-{number}": b"{}" for number in range(50)}
    send_and_confirm(own_kafka.bootstrap, WATCHES.name, records, confirmed.append)
    assert sorted(confirmed) == sorted(records)
    monkeypatch.undo()
    with reading(own_kafka.bootstrap, [WATCHES.name], Position(oldest=True)) as reader:
        assert {(message.key() or b"").decode() for message in reader.until_now()} == set(records)
