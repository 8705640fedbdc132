"""A stage that counts: the smallest handler whose output shows every record lost, doubled or out of order."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from lookout.errors import BadRecordError, FencedError, LookoutRuntimeError, TransientError
from lookout.runtime.observe import logs as runtime_logs
from lookout.runtime.worker import (
    BatchingThread,
    DeadLetter,
    Delivery,
    Handler,
    Output,
    Record,
    Result,
    ServiceSettings,
    StoredCheckpoint,
    Supervisor,
    Topics,
    Worker,
    end_process,
    load_settings,
)
from lookout.v1.state_pb2 import Checkpoint


class ToySettings(ServiceSettings):
    toy_prefix: str = "toy."
    dead_letter_bytes: int = 1 << 20

    @property
    def topics(self) -> Topics:
        prefix = self.toy_prefix
        return Topics(f"{prefix}in", f"{prefix}state", f"{prefix}dlq", self.dead_letter_bytes)

    @property
    def out(self) -> str:
        return f"{self.toy_prefix}out"


class State:
    def __init__(self, camera: str, count: int, total: int) -> None:
        self.camera = camera
        self.count = count
        self.total = total


class Toy(Handler[State]):
    """The value is JSON: {"n": number, "sleep": seconds, "do": what goes wrong}.

    `do`: "bad" a record that can never be processed, "boom" an unknown error, "huge" an output too large for
    its topic, "huge twice" so is what is written beside its dead letter, "away" a dependency that is away
    while `away`, "device" a device that fails while `device_broken`, "exit" what ends the batching thread,
    "gate" waits until `gate` is open, "loop" computes for ever in Python. `sleep` is a call into C: nothing
    stops it.
    """

    config_digest = "toy-1"
    shared_settings: ClassVar[Mapping[str, str]] = {"grid": "4x4"}  # of all workers of a group
    tick_every = 0.1

    def __init__(self, out: str, supervisor: Supervisor | None = None) -> None:
        self.out = out
        self.adder = BatchingThread("adder", _add, supervisor=supervisor)
        self.deliveries: list[Delivery] = []
        self.gone: list[tuple[str, int]] = []
        self.full: set[int] = set()
        self.away = False
        self.device_broken = False
        self.gate = threading.Event()
        self.gate.set()
        self.loads: list[tuple[str, bool]] = []
        self.seen: list[tuple[str, int]] = []
        self.records: list[Record] = []
        self.ticks: list[str] = []
        self.changed: list[bool] = []
        self.silent: set[str] = set()
        self.outdated: set[str] = set()  # cameras that tell the record time of their partition once

    def load(self, camera: str, stored: StoredCheckpoint | None) -> State:
        self.loads.append((camera, stored is not None))
        self.changed.append(stored is not None and stored.config_changed)
        if stored is None:
            return State(camera, 0, 0)
        return State(camera, stored.checkpoint.decode.next_sample, stored.checkpoint.decode.watermark_us)

    def handle(self, state: State, record: Record) -> Result:
        asked = json.loads(record.value)
        do = asked.get("do")
        self.seen.append((record.camera, asked["n"]))
        self.records.append(record)
        if do == "bad":
            raise BadRecordError("bad", "as asked")
        if do == "away" and self.away:
            raise TransientError("as asked")
        if do == "device" and self.device_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if do == "gate":
            self.gate.wait()
        while do == "loop":
            pass
        time.sleep(asked.get("sleep", 0))
        state.count += 1
        state.total = self.adder.ask((state.total, asked["n"], do == "exit"))
        if do == "boom":
            raise RuntimeError("as asked")
        value = json.dumps({"count": state.count, "total": state.total, "n": asked["n"]}).encode()
        if do in ("huge", "huge twice"):
            value = bytes(3 << 20)
        checkpoint = Checkpoint()
        checkpoint.decode.next_sample = state.count
        checkpoint.decode.watermark_us = state.total
        return Result([Output(self.out, record.camera, value)], checkpoint)

    def rejected(self, state: State, record: Record, reason: DeadLetter) -> Result:
        if b"huge twice" in record.value:
            return Result([Output(self.out, record.camera, bytes(3 << 20))])
        return Result([Output(self.out, record.camera, json.dumps({"rejected": reason.reason}).encode())])

    def forget(self, state: State) -> Result:
        return Result([Output(self.out, state.camera, json.dumps({"forgotten": state.count}).encode())])

    def tick(self, state: State, now: float) -> Result | None:
        self.ticks.append(state.camera)
        if state.camera not in self.silent:
            return None
        self.silent.discard(state.camera)
        return Result([Output(self.out, state.camera, json.dumps({"silent": state.count}).encode())])

    def passed(self, state: State, record_ms: int) -> Result | None:
        if state.camera not in self.outdated:
            return None
        self.outdated.discard(state.camera)
        return Result([Output(self.out, state.camera, json.dumps({"passed": record_ms}).encode())])

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries.extend(deliveries)

    def released(self, camera: str, partition: int) -> None:
        self.gone.append((camera, partition))

    def over_budget(self) -> set[int]:
        return self.full


def _add(batch: list[tuple[int, int, bool]]) -> list[int]:
    if any(exits for *_, exits in batch):
        raise SystemExit("as asked")
    return [total + n for total, n, _ in batch]


def main() -> int:
    settings = load_settings(ToySettings)
    runtime_logs.setup("toy", settings.instance)
    supervisor = Supervisor()
    handler = Toy(settings.out, supervisor)
    worker = Worker(settings, "toy", settings.topics, handler, supervisor=supervisor)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    try:
        worker.run()
    except FencedError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    except LookoutRuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    end_process(main())
