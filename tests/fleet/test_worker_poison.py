"""Records made to stop the fleet: each is gone after a few tries, and its neighbours do not notice."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from lookout.errors import DeviceFailedError
from lookout.runtime.worker import unreadable
from lookout.runtime.worker.record_reader import record_of
from lookout.wire.headers import text
from tests.eventually import eventually
from tests.fleet.bench import Bench, Threaded, running

pytestmark = pytest.mark.fleet


@pytest.fixture
def bench(kafka: str, prefix: str) -> Iterator[Bench]:
    with Bench(kafka, prefix) as bench:
        yield bench


def letter_headers(bench: Bench) -> list[dict[str, str]]:
    return [{name: value.decode() for name, value in each.headers()} for each in bench.read("dlq")]


@pytest.mark.parametrize("limit", [1 << 20, 17 << 20], ids=["limit known", "limit found out"])
def test_headers_that_fill_the_record_limit_are_left_out_of_the_dead_letter(bench: Bench, limit: int) -> None:
    bench.send("cam", 1, partition=1)
    bench.flush()  # in one batch with the next it would be over the topic's limit
    bench.send("cam", 2, partition=1, do="bad", headers={"long": bytes((1 << 20) - 200)})
    bench.flush()
    bench.send("cam", 2, partition=1)
    bench.send("other", 1, partition=2)
    bench.flush()
    with running(bench.settings(dead_letter_bytes=limit)) as worker:
        eventually(lambda: worker.count("records_total") == 4)
        assert worker.given_up() <= 1
        bench.send("other", 2, partition=2)
        bench.flush()
        eventually(lambda: worker.count("records_total") == 5)
        assert worker.error is None
    (facts,) = letter_headers(bench)
    assert (facts["lookout-reason"], facts["lookout-dropped"]) == ("bad", "headers")
    assert "long" not in facts
    (letter,) = bench.read("dlq")
    assert letter.value() == b'{"n": 2, "do": "bad"}'
    bench.assert_counted(["other"], 2)


def test_a_header_that_is_no_time_is_ignored(bench: Bench) -> None:
    """It is read on the polling thread, where an error ends the process, and the next one after it."""
    strange = (b"9" * 5000, "\u00b2".encode(), b"-1", b"", b"\xff", b"1e9")
    for n, value in enumerate(strange, 1):
        bench.send("cam", n, partition=1, headers={"lookout-arrived-ms": value})
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == len(strange) or worker.error)
        assert worker.error is None
    bench.assert_counted(["cam"], len(strange))


def test_a_dead_letter_that_cannot_be_written_at_all_is_dropped(bench: Bench) -> None:
    """Not even the reason fits: the offset moves on, and the log says so."""
    bench.send("cam", 1, partition=1, do="bad")
    bench.send("cam", 1, partition=1)
    bench.flush()
    with running(bench.settings(dead_letter_bytes=10)) as worker:
        eventually(lambda: worker.count("records_total") == 2)
        assert worker.error is None
    assert bench.read("dlq") == []


def test_a_record_whose_outcome_is_refused_too_becomes_a_plain_dead_letter(bench: Bench) -> None:
    bench.send("cam", 1, partition=1, do="huge twice")
    bench.send("cam", 1, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 2)
        assert worker.error is None
    (facts,) = letter_headers(bench)
    assert facts["lookout-reason"] == "output-refused"
    assert [each.get("total") for each in bench.outputs()["cam"]] == [1]


def test_a_dead_letter_keeps_the_bytes_of_a_key_in_another_encoding(bench: Bench) -> None:
    """Its key has U+FFFD for each byte that is no UTF-8: which camera sent it was lost."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bench.bootstrap})
    for key in ("T\u00fcr".encode("latin-1"), "T\u00fcr".encode()):
        producer.produce(f"{bench.prefix}in", key=key, value=b'{"n": 1, "do": "bad"}')
    assert producer.flush(30.0) == 0
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 2)
        assert worker.error is None
    letters = {letter.key(): text(letter.headers(), "lookout-source-key") for letter in bench.read("dlq")}
    assert letters == {"T\ufffdr".encode(): b"T\xfcr".hex(), "T\u00fcr".encode(): None}


def test_a_header_name_that_is_not_text_ends_no_worker(bench: Bench) -> None:
    """The client raises where it reads such headers: the record becomes a dead letter."""
    send_header_name(bench.bootstrap, f"{bench.prefix}in", b"\xff\xfe")
    bench.send("cam", 1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 2)
        assert worker.error is None
    (facts,) = letter_headers(bench)
    assert facts["lookout-reason"] == "bad-headers"
    bench.assert_counted(["cam"], 1)


def test_reading_such_headers_often_ends_no_process(bench: Bench) -> None:
    """Python calls the client another way once it has done so several times; a message keeps what it was."""
    for _ in range(20):
        send_header_name(bench.bootstrap, f"{bench.prefix}in", b"\xff\xfe")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bench.bootstrap, "group.id": f"{bench.prefix}read"}
    )
    try:
        places = [
            confluent_kafka.TopicPartition(f"{bench.prefix}in", partition, 0)
            for partition in consumer.list_topics(timeout=60.0).topics[f"{bench.prefix}in"].partitions
        ]
        consumer.assign(places)
        messages: list[confluent_kafka.Message] = []
        eventually(lambda: messages.extend(consumer.consume(20, 1.0)) or len(messages) == 20)
    finally:
        consumer.close()
    for message in messages:
        assert "not UTF-8" in record_of(message).damage
        assert not record_of(message).headers


def test_a_device_that_fails_for_good_ends_the_process_and_commits_nothing(bench: Bench) -> None:
    bench.send("cam", 1, partition=1, do="device")
    bench.send("other", 1, partition=2)
    bench.flush()
    worker = Threaded(bench.settings(device_retry_s=1.0))
    worker.handler.device_broken = True
    try:
        eventually(lambda: "device" in worker.health.blockers())
        eventually(lambda: not worker.thread.is_alive())
        assert isinstance(worker.error, DeviceFailedError)
        assert worker.count("retries_total", kind="device") >= 2
    finally:
        worker.stop()
    assert bench.read("dlq") == []
    assert "cam" not in bench.outputs()
    with running(bench.settings()) as worker:
        eventually(lambda: bench.counted(["cam", "other"], 1))
    bench.assert_counted(["cam", "other"], 1)


def test_a_device_that_works_again_makes_the_worker_ready_again(bench: Bench) -> None:
    bench.send("cam", 1, partition=1, do="device")
    bench.flush()
    worker = Threaded(bench.settings(device_retry_s=600.0))
    worker.handler.device_broken = True
    try:
        eventually(lambda: "device" in worker.health.blockers())
        worker.handler.device_broken = False
        eventually(worker.health.ready)
    finally:
        worker.stop()
    bench.assert_counted(["cam"], 1)


def test_a_camera_that_waits_for_its_dependency_holds_no_other_camera_up(bench: Bench) -> None:
    """Records of its partition are still read and computed; only their commit waits for it."""
    bench.send("slow", 1, partition=0, do="away")
    bench.flush()
    worker = Threaded(bench.settings(retry_max_s=0.2))
    worker.handler.away = True
    try:
        eventually(lambda: worker.count("retries_total", kind="transient") >= 1)
        bench.send("quick", 1, partition=0)
        bench.flush()
        eventually(lambda: ("quick", 1) in worker.handler.seen)
        assert bench.outputs() == {}
        worker.handler.away = False
        eventually(lambda: worker.count("records_total") == 2)
    finally:
        worker.stop()
    bench.assert_counted(["slow", "quick"], 1)


def test_a_dependency_that_stays_away_leaves_a_dead_letter(bench: Bench) -> None:
    bench.send("cam", 1, partition=0, do="away")
    bench.send("cam", 1, partition=0)
    bench.flush()
    worker = Threaded(bench.settings(retry_limit_s=0.5, retry_max_s=0.1))
    worker.handler.away = True
    try:
        eventually(lambda: worker.count("records_total") == 2)
    finally:
        worker.stop()
    (facts,) = letter_headers(bench)
    assert facts["lookout-reason"] == "unavailable"
    assert [each.get("rejected") for each in bench.outputs()["cam"]] == ["unavailable", None]


def send_header_name(bootstrap: str, topic: str, name: bytes) -> None:
    """Produce a record with a header name that Python's client would refuse: librdkafka's own calls."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_headers_new):
        function.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), error, len(error))
    client = ctypes.c_void_p(library.rd_kafka_new(0, conf, error, len(error)))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
    size = ctypes.c_ssize_t
    library.rd_kafka_header_add(headers, ctypes.c_char_p(name), size(-1), ctypes.c_char_p(b"v"), size(1))
    topic_tag, value_tag, key_tag, flags_tag, headers_tag, end = (
        ctypes.c_int(each) for each in (1, 4, 5, 7, 10, 0)
    )
    value = b'{"n": 1}'
    fields = (
        *(topic_tag, ctypes.c_char_p(topic.encode())),
        *(value_tag, ctypes.c_char_p(value), ctypes.c_size_t(len(value))),
        *(key_tag, ctypes.c_char_p(b"strange"), ctypes.c_size_t(7)),
        *(flags_tag, ctypes.c_int(2)),
        *(headers_tag, headers),
    )
    assert library.rd_kafka_producev(client, *fields, end) == 0
    assert library.rd_kafka_flush(client, 30_000) == 0
    library.rd_kafka_destroy(client)


@pytest.mark.parametrize("records", [1, 5])
def test_a_batch_that_no_client_can_decompress_becomes_one_dead_letter(
    bench: Bench, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes become more than a fetch: the worker says so, is not ready, and goes on after them."""
    monkeypatch.setattr(unreadable, "PATIENCE_S", 2.0)
    bench.send("cam", 1, partition=1)
    bench.flush()
    small = {"bootstrap.servers": bench.bootstrap, "compression.type": "zstd", "linger.ms": 2000}
    producer = confluent_kafka.Producer(small | {"message.max.bytes": 64 << 20, "batch.size": 64 << 20})
    for _ in range(records):
        producer.produce(f"{bench.prefix}in", bytes(3_000_000 // records), key="cam", partition=1)
    assert producer.flush(240.0) == 0
    bench.send("cam", 2, partition=1)
    bench.send("other", 1, partition=2)
    bench.flush()
    limits = {"fetch.max.bytes": "1000000", "receive.message.max.bytes": "1100000"}
    with running(bench.settings(kafka_options=limits)) as worker:
        eventually(lambda: "records" in worker.health.blockers() or worker.error)
        why = worker.health.blockers()["records"]
        assert f"{bench.prefix}in [1] cannot be read at offset 1: " in why
        eventually(lambda: worker.count("records_total") == 4 or worker.error)
        assert worker.error is None
        eventually(worker.health.ready)
    (facts,) = letter_headers(bench)
    assert (facts["lookout-reason"], facts["lookout-source-offset"]) == ("unreadable", str(records))
    assert facts["lookout-detail"].startswith(f"offsets 1 to {records} cannot be read: ")
    bench.assert_counted(["cam"], 2)
