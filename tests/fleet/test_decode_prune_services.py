"""Decode and prune-encode as processes on a real broker: killed, wiped, fed with
rubbish; facts and tensors stay.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from redis import Redis

from lookout.local import KafkaServer, RedisServer, create_topics, guarded
from lookout.pruning import unpack_mask
from lookout.runtime.store import Node, StoreSettings
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.wire import FRAMES, SEGMENTS, TOKENS, dead_letters
from lookout.wire.headers import REASON, text
from tests.eventually import eventually
from tests.streams import segments
from tests.tiny_models import checkpoint

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]

PARTITIONS = 2
SIDE = 112


@dataclass
class Fleet:
    """Two services on given servers; killed and started again at will."""

    kafka: str
    redis_url: str
    log: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """`python -m lookout.services.<name>`."""
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LOOKOUT_")},
            "OMP_NUM_THREADS": "1",
            "LOOKOUT_BOOTSTRAP": self.kafka,
            "LOOKOUT_REDIS_URL": self.redis_url,
            "LOOKOUT_INSTANCE": f"{name}-0",
            "LOOKOUT_HOST": "127.0.0.1",
            "LOOKOUT_ADVERTISE": "127.0.0.1",
            "LOOKOUT_MODEL_DIR": str(checkpoint("internvl")),
            "LOOKOUT_WINDOW_S": "6",
            "LOOKOUT_STRIDE_S": "2",
            "LOOKOUT_TRANSACTION_TIMEOUT_S": "5",
            "LOOKOUT_STORE__LEASE_S": "2",
        }
        width = {"LOOKOUT_INPUT_WIDTH": str(SIDE), "LOOKOUT_INPUT_HEIGHT": str(SIDE)}
        more = {"LOOKOUT_SILENCE_S": "10"} if name == "decode" else {}
        with self.log.open("ab") as sink:
            self.running[name] = subprocess.Popen(
                guarded([sys.executable, "-m", f"lookout.services.{name}"]),
                env=environment | width | more,
                stdout=sink,
                stderr=sink,
            )

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def fleet(kafka: str, redis_url: str, log: Path) -> Iterator[Fleet]:
    """Both services, ended at the end; what they said is shown when the test fails."""
    made = Fleet(kafka, redis_url, log)
    try:
        for name in ("decode", "prune_encode"):
            made.start(name)
        yield made
    except BaseException:
        sys.stderr.write(log.read_text()[-8000:])
        raise
    finally:
        for name in list(made.running):
            made.kill(name)


def committed(kafka: str, topic: str) -> list[Message]:
    """Everything committed in a topic now."""
    with Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    ) as consumer:
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
        found: list[Message] = []
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(60.0)
            assert message is not None, f"{topic} cannot be read"
            if message.error() is None:
                found.append(message)
            else:
                ended += 1
    return found


def tokens(kafka: str) -> dict[str, list[TokensRecord]]:
    """Committed token records by camera."""
    out: dict[str, list[TokensRecord]] = {}
    for message in committed(kafka, TOKENS.name):
        record = TokensRecord.FromString(message.value() or b"")
        out.setdefault(record.camera, []).append(record)
    return out


def gaps(found: dict[str, list[TokensRecord]]) -> int:
    """Gap events written."""
    return sum(r.event.kind == StreamEvent.KIND_GAP for records in found.values() for r in records)


def wait_for_gaps(kafka: str, wanted: int, seconds: float = 300.0) -> dict[str, list[TokensRecord]]:
    """Token records once every stream has ended in silence."""
    found: dict[str, list[TokensRecord]] = eventually(
        lambda: gaps(read := tokens(kafka)) >= wanted and read, seconds, every=0.5
    )
    return found


def publish(kafka: str, streams: dict[str, Sequence[bytes]], pause_s: float = 0.0) -> None:
    """Every camera's segments, interleaved."""
    producer = Producer({"bootstrap.servers": kafka})
    for n in range(max(map(len, streams.values()))):
        for camera, pieces in streams.items():
            if n < len(pieces):
                producer.produce(SEGMENTS.name, pieces[n], camera)
        producer.flush()
        time.sleep(pause_s)


def facts(record: TokensRecord) -> tuple[object, ...]:
    """What a token record says, without where and when it was written (an epoch is a time, too)."""
    block = record.block
    return (
        record.WhichOneof("body"),
        block.index,
        [(f.time_us, f.sample, f.row, f.key) for f in block.frames],
        [(list(p.frames), p.anchor, p.keep) for p in block.patches],
        list(block.embeddings.shape),
        block.embeddings.crc32c,
        record.event.kind,
        record.event.start_us,
        record.event.reason,
    )


@pytest.mark.long
def test_segments_become_blocks(tmp_path: Path) -> None:
    """An undisturbed stream, rubbish in the middle, a segment twice, a new clock; then silence."""
    pieces = segments(7.0)
    assert len(pieces) == 4
    streams = {
        "plain": pieces,
        "rubbish": [*pieces[:2], b"\0" * 5000, b"", *pieces[2:]],
        "twice": [*pieces[:3], pieces[1], pieces[3]],
        "restarted": [*pieces, *pieces],
    }
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer())
        redis = stack.enter_context(RedisServer())
        create_topics(kafka.bootstrap, PARTITIONS)
        stack.enter_context(fleet(kafka.bootstrap, redis.url, tmp_path / "log"))
        publish(kafka.bootstrap, streams)
        found = wait_for_gaps(kafka.bootstrap, 5)
        dead = committed(kafka.bootstrap, dead_letters(SEGMENTS).name)
        frames = committed(kafka.bootstrap, FRAMES.name)
        check_tensors(redis.url, found["plain"])
    plain = [r.block for r in found["plain"] if r.HasField("block")]
    assert [b.index for b in plain] == [0, 1, 2, 3]
    assert [len(b.frames) for b in plain[:3]] == [4, 4, 4]
    assert [f.sample for b in plain for f in b.frames][:12] == list(range(12))
    for block in plain:
        assert [p.anchor for p in block.patches] == [True] + [False] * (len(block.patches) - 1)
        assert unpack_mask(block.patches[0].keep, block.group_rows, block.group_cols).all()
        assert block.patches_encoded <= block.patches_total
    assert sum(b.patches_encoded for b in plain) < 0.8 * sum(b.patches_total for b in plain)
    assert [facts(r) for r in found["rubbish"]] == [facts(r) for r in found["plain"]]
    assert sorted(text(m.headers(), REASON) or "" for m in dead) == ["empty", "unreadable"]
    kinds = [r.event.kind for r in found["twice"] if r.HasField("event")]
    assert kinds == [StreamEvent.KIND_LATE, StreamEvent.KIND_GAP]
    blocks = [facts(r) for r in found["twice"] if r.HasField("block")]
    assert blocks == [facts(r) for r in found["plain"] if r.HasField("block")]
    again = [(r.epoch, r.block.index) for r in found["restarted"] if r.HasField("block")]
    first, second = sorted({epoch for epoch, _ in again})
    assert again == [(epoch, index) for epoch in (first, second) for index in range(4)]
    reasons = [r.event.reason for r in found["restarted"] if r.HasField("event")]
    assert reasons == ["clock-reset", "silence"]
    parsed = [FramesRecord.FromString(m.value() or b"") for m in frames]
    assert all(
        m.partition() == r.segment.segment.partition
        for m, r in zip(frames, parsed, strict=True)
        if r.HasField("segment")
    )


def check_tensors(redis_url: str, records: Sequence[TokensRecord]) -> None:
    """Tokens can be read from whom holds them, and made again to the same bits."""
    node = Node(StoreSettings(), redis_url)
    try:
        for record in records:
            if not record.HasField("block"):
                continue
            ref = record.block.embeddings
            held = node.client.fetch(ref, record)
            assert held.source == "peer"
            holder = node.directory.find(ref)[0].address
            fresh = TokensRecord.FromString(record.SerializeToString())
            fresh.block.embeddings.id += ".again"  # a name nobody holds
            made = node.peers.materialize(holder, fresh.block.embeddings, fresh)
            assert np.array_equal(np.asarray(made), np.asarray(held.array))
    finally:
        node.close()


@pytest.mark.long
def test_killed_and_wiped_without_a_difference(tmp_path: Path) -> None:
    """SIGKILL either service at random moments and wipe the directory: every
    block once, the same to the bit."""
    streams = {f"camera-{n}": segments(30.0, seed=n) for n in range(3)}
    runs = []
    for disturbed in (False, True):
        with ExitStack() as stack:
            kafka = stack.enter_context(KafkaServer())
            redis = stack.enter_context(RedisServer())
            create_topics(kafka.bootstrap, PARTITIONS)
            made = stack.enter_context(fleet(kafka.bootstrap, redis.url, tmp_path / f"log{disturbed}"))
            sender = threading.Thread(target=publish, args=(kafka.bootstrap, streams, 2.0))
            sender.start()
            if disturbed:
                disturb(made)
            sender.join()
            found = wait_for_gaps(kafka.bootstrap, len(streams), 400.0)
            runs.append({camera: [facts(r) for r in records] for camera, records in found.items()})
    assert runs[0] == runs[1]


def disturb(made: Fleet) -> None:
    """Kill each service twice while records are on their way; wipe the directory in between."""
    chance = random.Random(7)
    for turn in range(2):
        for name, topic in (("decode", FRAMES.name), ("prune_encode", TOKENS.name)):
            written = len(committed(made.kafka, topic))
            end = time.monotonic() + 120
            while (
                len(committed(made.kafka, topic)) < written + chance.randint(1, 8) and time.monotonic() < end
            ):
                time.sleep(chance.uniform(0.0, 0.5))
            made.kill(name)
            made.start(name)
        if turn == 0:
            with Redis.from_url(made.redis_url) as client:
                client.flushall()
