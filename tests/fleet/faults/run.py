"""Fleets that play cameras, left alone or disturbed; the outcomes of a disturbed run are computed again."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from lookout.local import Fleet
from lookout.past.verification import Tally, verify
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import SEGMENTS, WATCHES, Stage, to_json
from tests.fleet.faults import outcomes
from tests.fleet.faults.faults import LEASE_S, SESSION_S, Fault, supervised_for
from tests.fleet.faults.footage import Piece, damaged_frames, lossy, pieces
from tests.fleet.faults.remembered import Remembered, remembered
from tests.fleet.faults.scarce import SCARCE

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "libs/lookout/models/tiny"
QUESTIONS = ("Is a person in view?", "Is anyone lying on the ground?")
STRIDE_S, WINDOW_S = 2.0, 10.0
SETTLE_S = 3.0
CHAPTER_S = 20.0  # several chapters a camera
KV_BYTES, STORE_BYTES = 4 << 20, 8 << 20  # of a few cameras: the others' are on disk

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much, how fast and how long. `seconds` is a whole number of strides; `pace` in times real time;
    `lossy`: for each further camera, the share of its TS packets that is lost."""

    cameras: int
    seconds: int
    seed: int = 1
    pace: float = 1.0
    patience_s: float = 600.0
    lossy: tuple[float, ...] = ()

    @property
    def strides(self) -> int:
        """Windows of each camera."""
        return int(self.seconds / STRIDE_S)

    @property
    def expected(self) -> int:
        """One outcome for each camera, window and watch."""
        return (self.cameras + len(self.lossy)) * len(QUESTIONS) * self.strides


class Publisher:
    """Plays all cameras on a thread; with `pace` None as fast as it can. Each segment counts once.

    `options`: librdkafka options, by the broker's address.
    """

    def __init__(
        self,
        bootstrap: str,
        film: Sequence[Piece],
        pace: float | None,
        options: Callable[[str], Mapping[str, object]] = lambda bootstrap: {},
    ) -> None:
        self._film = sorted(film, key=lambda piece: (piece.start_s, piece.camera))
        self._pace = pace
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.max.bytes": 17 << 20,
                "delivery.timeout.ms": 600_000,
                "log_level": 0,
                **options(bootstrap),
            }
        )
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether everything is published. Raises what went wrong."""
        if self._failed:
            raise AssertionError(self._failed[0])
        return not self._thread.is_alive()

    def _play(self) -> None:
        begun = time.monotonic()
        for piece in self._film:
            if self._pace is not None:
                time.sleep(max(0.0, begun + piece.start_s / self._pace - time.monotonic()))
            at = outcomes.WALL_MS + round(piece.start_s * 1000)
            self._producer.produce(
                SEGMENTS.name,
                piece.data,
                key=piece.camera,
                headers={"captured-at": str(at)},
                on_delivery=self._delivered,
            )
            self._producer.poll(0)
        if left := self._producer.flush(300.0):
            self._failed.append(f"{left} segments were not published")

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed.append(f"a segment was not published: {error}")


@dataclass(frozen=True, slots=True)
class Footage:
    """What the cameras of a plan send. `damaged`: of the cameras that lose packets, the frames (by number)
    that arrive damaged or not at all."""

    segments: list[Piece]
    damaged: Mapping[str, set[int]]


def film(plan: Plan) -> Footage:
    """Every camera's segments."""
    segments = [
        piece
        for number in range(plan.cameras)
        for piece in pieces(f"cam-{number:02d}", plan.seed * 1000 + number, plan.seconds, STRIDE_S)
    ]
    damaged = {}
    for number, share in enumerate(plan.lossy):
        camera, seed = f"lossy-{number:02d}", plan.seed * 1000 + 500 + number
        sent = pieces(camera, seed, plan.seconds, STRIDE_S)
        arrived = lossy(sent, share, seed)
        damaged[camera] = damaged_frames(sent, arrived)
        segments += arrived
    return Footage(segments, damaged)


def fleet(
    folder: Path,
    engine: str = "transformers",
    more: Mapping[str, str] | None = None,
    *,
    scarce: bool = False,
) -> Fleet:
    """A fleet of its own Kafka and Redis, with short sessions and leases; silence never ends a stream.

    Args:
        folder: for everything it writes.
        engine: of prefill.
        more: settings of every stage but alerts.
        scarce: models that run out of memory when told to, so little memory that tensors and KV are
            written to disk, and cameras that remember.
    """
    model = folder / "model"
    shutil.copytree(MODEL, model)
    common = {
        "model_dir": str(model),
        "stride_s": str(STRIDE_S),
        "window_s": str(WINDOW_S),
        "session_timeout_s": str(SESSION_S),
    }
    store, kv = {"store__lease_s": str(LEASE_S), **(more or {})}, {}
    spools: dict[Stage, dict[str, str]] = {stage: {} for stage in Stage}
    if scarce:
        store |= {"store__memory_bytes": str(STORE_BYTES)}
        spools = {stage: {"store__spool": str(folder / "spool" / stage.value)} for stage in Stage}
        kv = {"kv_bytes": str(KV_BYTES), "kv_spill_dir": str(folder / "kv")}
        # By bytes: the cameras' time is years ago.
        kv |= {"memory": "500MB", "memory_dir": str(folder / "memory"), "memory_chapter_s": str(CHAPTER_S)}
    modules = {stage: ("tests.fleet.faults.scarce", stage.value, str(folder / "fleet")) for stage in SCARCE}
    return Fleet(
        folder / "fleet",
        settings=common,
        stage_settings={
            Stage.DECODE: {"silence_s": "86400", **spools[Stage.DECODE], **store},
            Stage.PRUNE_ENCODE: {**spools[Stage.PRUNE_ENCODE], **store},
            Stage.PREFILL: {"engine": engine, **kv, **spools[Stage.PREFILL], **store},
        },
        modules=modules if scarce else {},
        python_path=ROOT,
        open_servers=True,
    )


def undisturbed(
    plan: Plan, segments: Sequence[Piece], folder: Path, tell: Tell, engine: str = "transformers"
) -> outcomes.Committed:
    """The outcomes of a fleet that is left alone."""
    with fleet(folder, engine) as running:
        tell("the undisturbed fleet is up")
        watch(running.bootstrap)
        publisher = Publisher(running.bootstrap, segments, None)
        publisher.start()
        return _await(running, publisher, plan, tell)


def stormy(
    plan: Plan, segments: Sequence[Piece], faults: Sequence[Fault], folder: Path, tell: Tell
) -> tuple[outcomes.Committed, Tally, Remembered]:
    """The outcomes of a fleet that meets `faults` in an order drawn from the seed while the cameras play,
    what became of each when it was computed again out of Kafka, and what the cameras remember."""
    chance = random.Random(plan.seed)
    with fleet(folder, scarce=True) as running:
        tell("the other fleet is up")
        watch(running.bootstrap)
        publisher = Publisher(running.bootstrap, segments, plan.pace)
        publisher.start()
        pause = plan.seconds / plan.pace / (len(faults) + 1)
        for fault in chance.sample(list(faults), len(faults)):
            supervised_for(running, chance.uniform(0.2, max(0.4, 2 * pause)))
            tell(fault(running, chance))
            for news in running.supervise():
                tell(f"  {news}")
        committed = _await(running, publisher, plan, tell)
        tell("computing every outcome again")
        common = {"stride_s": STRIDE_S, "window_s": WINDOW_S}
        tally = verify(folder / "model", running.bootstrap, common=common, tolerance=outcomes.SAME)
    return committed, tally, remembered(folder / "memory")


def watch(bootstrap: str) -> None:
    """Ask the standing questions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    rule = Rule(threshold=0.5, k=1, n=1)
    for number, question in enumerate(QUESTIONS):
        watch = Watch(id=f"watch-{number}", version=1, question=question, rule=rule)
        producer.produce(WATCHES.name, to_json(watch), key=watch.id)
    assert producer.flush(30.0) == 0
    time.sleep(1.0)  # the table is followed, not asked


def _await(running: Fleet, publisher: Publisher, plan: Plan, tell: Tell) -> outcomes.Committed:
    """Everything committed once all outcomes are there and nothing more comes, or patience ends."""
    deadline = time.monotonic() + plan.patience_s
    before = -1
    while time.monotonic() < deadline:
        for news in supervised_for(running, SETTLE_S):
            tell(f"  {news}")
        if not publisher.done:
            continue
        found = outcomes.read(running.bootstrap)
        if found.outcomes >= plan.expected and _settled(found) == before:
            break
        before = _settled(found)
    tell(f"{outcomes.read(running.bootstrap).outcomes} of {plan.expected} outcomes")
    return outcomes.read(running.bootstrap)


def _settled(found: outcomes.Committed) -> int:
    return sum(map(len, found.verdicts.values())) + sum(map(len, found.alerts.values()))
