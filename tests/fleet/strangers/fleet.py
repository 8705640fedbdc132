"""The honest side: a fleet started by `lookout up`, cameras that play, and what was committed of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from lookout.cli.connect import client_options, read_erasures, reading
from lookout.cli.options import Position
from lookout.local import Child, FleetAddress, running_fleets
from lookout.runtime.net import RedisSecurity, load_connections
from lookout.runtime.worker.record_reader import record_of
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import (
    ALERTS,
    ANSWERS,
    PIPELINE,
    RECORDINGS,
    VERDICTS,
    WATCHES,
    Stage,
    WireError,
    from_json,
    key_text,
    received,
    to_json,
)
from tests.eventually import eventually
from tests.fleet.faults.run import MODEL, QUESTIONS, STRIDE_S, WINDOW_S

HONEST: Final = "cam-*"
_SETTINGS: Final = {
    "stride_s": STRIDE_S,
    "window_s": WINDOW_S,
    "session_timeout_s": 6,
    "decode.silence_s": 86400,
    "decode.store__lease_s": 3,
    "prune-encode.store__lease_s": 3,
}


@dataclass(frozen=True, slots=True)
class Committed:
    """Outcomes of the honest cameras: how many different answers, other outcomes, and ids that came again."""

    answered: int
    unanswered: int
    doubled: int


class UpFleet:
    """`lookout up` as a person runs it, as a child process.

    Args:
        folder: Its data, and its console's text.
        cameras: Names of the honest cameras.
    """

    def __init__(self, folder: Path, cameras: Sequence[str]) -> None:
        self.folder = folder / "data"
        self._cameras = frozenset(cameras)
        films = folder / "films"
        films.mkdir(exist_ok=True)
        words = [word for name, value in _SETTINGS.items() for word in ("--set", f"{name}={value}")]
        self.killed: Counter[str] = Counter()
        self._child = Child(
            [
                *(sys.executable, "-m", "lookout.cli", "up", "--data", self.folder, "--model", MODEL, *words),
                *("--recordings", films),
            ],
            folder / "up.log",
            env={**os.environ, "COLUMNS": "200"},
        )
        self.address: FleetAddress = eventually(self._announced, 600.0, every=0.2)

    def _announced(self) -> FleetAddress | None:
        if not self._child.alive:
            raise RuntimeError(f"lookout up ended: {self._child.tail(30)}")
        return next((fleet for fleet in running_fleets() if fleet.pid == self._child.pid), None)

    @property
    def bootstrap(self) -> str:
        """Its broker."""
        return self.address.bootstrap

    @property
    def alive(self) -> bool:
        """Whether the command itself still runs."""
        return self._child.alive

    def watch(self) -> None:
        """Ask the questions, of the honest cameras and of strangers' windows."""
        producer = Producer(client_options(self.bootstrap))
        for number, question in enumerate(QUESTIONS):
            watch = Watch(
                id=f"watch-{number}",
                version=1,
                question=question,
                cameras=[HONEST, "strange-*"],
                rule=Rule(threshold=0.5, k=1, n=1),
            )
            producer.produce(WATCHES.name, to_json(watch), key=watch.id)
        assert producer.flush(30.0) == 0
        time.sleep(1.0)  # the table is followed, not asked

    def committed(self) -> Committed:
        """What the honest cameras have now."""
        ids: Counter[str] = Counter()
        answered: set[str] = set()
        for topic, kind in ((VERDICTS.name, Verdict), (ALERTS.name, Alert)):
            for message in self._messages(topic, kind):
                ids[message.id] += 1
                if isinstance(message, Verdict) and message.outcome == Verdict.OUTCOME_ANSWERED:
                    answered.add(message.id)
                elif isinstance(message, Verdict):
                    answered.discard(message.id)
        verdicts = {message.id for message in self._messages(VERDICTS.name, Verdict)}
        doubled = sum(count - 1 for count in ids.values())
        return Committed(len(answered), len(verdicts) - len(answered), doubled)

    def partitions_of(self) -> dict[str, int]:
        """The partition of each honest camera that has a verdict."""
        with reading(self.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
            places = {key_text(record.key()): record.partition() or 0 for record in reader.until_now()}
        return {camera: number for camera, number in places.items() if camera in self._cameras}

    def ask(self, name: str, film: Path) -> None:
        """Ask an honest job about a recording."""
        job = RecordingJob(id=name, uris=[film.as_uri()], questions=[QUESTIONS[0]])
        producer = Producer(client_options(self.bootstrap))
        producer.produce(RECORDINGS.name, to_json(job), key=name)
        assert producer.flush(30.0) == 0

    def unanswered_jobs(self, names: Sequence[str]) -> list[str]:
        """Honest jobs that are not done."""
        done = set()
        with reading(self.bootstrap, [ANSWERS.name], Position(oldest=True)) as reader:
            for record in reader.until_now():
                try:
                    answers = received(RecordingAnswers, record_of(record))
                except WireError:
                    continue
                if answers.state == RecordingAnswers.STATE_DONE:
                    done.add(answers.id)
        return [name for name in names if name not in done]

    def erase(self, camera: str) -> str:
        """Erase a camera as a person does; the erasure's id."""
        words = [sys.executable, "-m", "lookout.cli", "erase", "--camera", camera, "--yes"]
        done = subprocess.run(
            [*words, "--wait", "300", "--bootstrap", self.bootstrap],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        return done.stdout.split()[0]

    def undone(self, identity: str) -> list[str]:
        """How strangers changed an erasure: it is gone, or somebody has not confirmed it, or is no member."""
        log = read_erasures(self.bootstrap)
        faults = [] if identity in log.erasures else [f"{identity} does not stand any more"]
        faults += [f"{identity} waits for {member.instance}" for member in log.open_at(identity)]
        services = {member.service for member in log.members.values()}
        missing = {"decode", "prune-encode", "prefill"} - services
        faults += [f"{name} is no member" for name in sorted(missing)]
        return faults

    def _messages(self, topic: str, kind: type[Verdict | Alert]) -> Iterator[Verdict | Alert]:
        with reading(self.bootstrap, [topic], Position(oldest=True)) as reader:
            for record in reader.until_now():
                try:
                    message = from_json(record.value() or b"", kind)
                except WireError:
                    continue
                if message.camera in self._cameras and message.watch.startswith("watch-"):
                    yield message

    def harvest(self, topic: str, most: int) -> list[bytes]:
        """Some honest records of a topic."""
        with reading(self.bootstrap, [topic], Position(oldest=True)) as reader:
            records = [record for record in reader.until_now() if record.key() and record.value()]
        names = {camera.encode() for camera in self._cameras}
        return [record.value() for record in records if record.key() in names][:most]

    def kill(self, stage: Stage) -> None:
        """SIGKILL a service: the next one loads what stands in the state topic."""
        wanted = f"lookout.services.{stage.value.replace('-', '_')}"
        for process in psutil.Process(self._child.pid).children(recursive=True):
            if wanted in process.cmdline() and process.is_running():
                self.killed[stage.value] += 1
                os.kill(process.pid, signal.SIGKILL)
                return

    def deaths(self) -> list[str]:
        """Ends of services that this run did not bring about, as the command told them."""
        lines = self._child.log.read_text(errors="replace").splitlines()
        ends = [line for line in lines if " ended with code " in line or "ended, and was restarted" in line]
        left = dict(self.killed)
        out = []
        for line in ends:
            stage = next(
                (name for name in left if f"{name}-0 ended with code -9" in line and left[name]), None
            )
            if stage is None:
                out.append(line)
            else:
                left[stage] -= 1
        if not self._child.alive:
            out.append(f"lookout up ended: {self._child.tail(5)}")
        return out

    def lags(self) -> dict[str, int]:
        """Records that each stage has not read; ends of transactions are none."""
        return {stage.value: self._unread(stage.value, PIPELINE[stage].source.name) for stage in Stage}

    def _unread(self, group: str, topic: str) -> int:
        options = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({**client_options(self.bootstrap), **options, "enable.partition.eof": True})
        try:
            numbers = consumer.list_topics(topic, timeout=60.0).topics[topic].partitions
            places = consumer.committed([TopicPartition(topic, number) for number in numbers], timeout=60.0)
            for place in places:
                place.offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            consumer.assign(places)
            unread, ended = 0, 0
            while ended < len(places):
                message = consumer.poll(30.0)
                if message is None:
                    return -1
                if message.error() is None:
                    unread += 1
                else:
                    ended += message.error().code() == KafkaError._PARTITION_EOF
            return unread
        except KafkaException:
            return -1
        finally:
            consumer.close()

    def environment(self) -> dict[str, str]:
        """Settings with which another service reaches this fleet."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")}
        return {
            **inherited,
            **self.address.environment(),
            "LOOKOUT_MODE": "local",
            "LOOKOUT_HOST": "127.0.0.1",
            "LOOKOUT_INSTANCE": "strangers-agent",
            "LOOKOUT_METRICS_PORT": "0",
            "LOOKOUT_BOOTSTRAP": self.bootstrap,
            "LOOKOUT_REDIS_URL": self.address.redis_url,
        }

    def secrets(self) -> dict[str, str]:
        """Its secrets, by name."""
        files = {"the fleet's token": self.address.grpc_token_file or ""}
        files |= {
            name: path for name, path in self.address.security.items() if name.endswith("password_file")
        }
        return {name: Path(path).read_text() for name, path in files.items()}

    def directory(self) -> redis.Redis:
        """A client of its Redis."""
        security = load_connections(RedisSecurity, self.address.environment())
        return security.redis_client(self.address.redis_url, socket_timeout=10.0)

    def close(self) -> None:
        """Ctrl-C."""
        self._child.signal(signal.SIGINT)
        self._child.stop(60.0)
