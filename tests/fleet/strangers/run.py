"""One run: honest cameras play while strangers are at every door."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
from google.protobuf.message import Message

from lookout.cli.connect import client_options, reading
from lookout.cli.options import Position
from lookout.wire import (
    PIPELINE,
    RECORDING_FLOWS,
    Stage,
    all_topics,
    dead_letters,
    headers,
    message_kind,
    read_record,
    to_json,
)
from tests.fleet.faults.footage import Piece, pieces
from tests.fleet.faults.run import MODEL, QUESTIONS, STRIDE_S, Publisher
from tests.fleet.strangers import calls, directory, leaks, readers, rtsp, topics
from tests.fleet.strangers.fleet import UpFleet
from tests.fleet.strangers.standstill import Standstill
from tests.fleet.strangers.tally import Door, Score, Tally

Tell = Callable[[str], None]
_HARVEST: Final = 25  # honest records of a topic that strangers start from
_SETTLED_S: Final = 120.0
#: a camera that is erased before strangers come
ERASED: Final = "erased-0"
#: what a person runs over topics that strangers wrote to
_COMMANDS: Final = (
    ("watch", "list"),
    ("watch", "list", "--json"),
    ("watch", "rm", "strange-0"),
    ("alerts", "--no-follow", "--since", "start"),
    ("coverage",),
    ("coverage", "--json"),
    ("doctor",),
    ("report", "--since", "start", "--out", "page.html"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much and how long.

    Attributes:
        cameras: Honest ones.
        minutes: That the honest cameras play. Strangers send every input, and all of them again while time is
            left for a round.
        pace: Times real time at which the cameras play.
        seed: Of every choice.
        patience_s: For the honest cameras' outcomes once everything is sent.
    """

    cameras: int = 5
    minutes: float = 3.0
    pace: float = 0.5
    seed: int = 1
    patience_s: float = 900.0

    @property
    def names(self) -> list[str]:
        """The honest cameras."""
        return [f"cam-{number:02d}" for number in range(self.cameras)]

    @property
    def seconds(self) -> int:
        """Of each honest camera's film, a whole number of strides."""
        strides = int(self.minutes * 60 * self.pace / STRIDE_S)
        return int(max(1, strides) * STRIDE_S)

    @property
    def expected(self) -> int:
        """An answer for each camera, window and question."""
        return self.cameras * len(QUESTIONS) * int(self.seconds / STRIDE_S)


def run(plan: Plan, folder: Path, tell: Tell) -> tuple[Score, Tally]:
    """Play, let strangers in, count.

    Args:
        plan: How much.
        folder: For everything that is written.
        tell: Told in sentences how far it is.
    """
    chance, tally = random.Random(plan.seed), Tally()
    film = {
        name: pieces(name, plan.seed * 1000 + number, plan.seconds, STRIDE_S)
        for number, name in enumerate(plan.names)
    }
    tell(f"{plan.cameras} cameras of {plan.seconds} s are filmed")
    fleet = UpFleet(folder, plan.names)
    try:
        tell("the fleet is up")
        fleet.watch()
        publisher = Publisher(
            fleet.bootstrap,
            [piece for pieces in film.values() for piece in pieces],
            plan.pace,
            client_options,
        )
        publisher.start()
        _until(lambda: fleet.committed().answered >= 2 * plan.cameras, plan.patience_s)
        tell("the honest cameras have their first answers")
        erased = fleet.erase(ERASED)
        jobs = _ask(fleet, folder, film)
        standstill = Standstill(
            fleet.bootstrap, client_options(fleet.bootstrap), (*PIPELINE.values(), *RECORDING_FLOWS)
        )
        footage = [piece.data for pieces in film.values() for piece in pieces]
        listener = directory.Listener()
        opened = _doors(fleet, folder, footage, listener=listener, chance=chance, tally=tally)
        agent = _agent(fleet, folder, tally)
        start_s, rounds, round_s = time.monotonic(), 0, 0.0
        while rounds == 0 or time.monotonic() - start_s + round_s <= plan.minutes * 60:
            _attack(fleet, opened, chance, tell, standstill)
            rounds += 1
            round_s = (time.monotonic() - start_s) / rounds
            tell(f"round {rounds}: {sum(tally.inputs.values())} inputs")
        for door in opened:
            door.close()
        _settle(fleet, publisher, plan, tally, tell)
        late_jobs: list[str] = []
        if not _until(lambda: not fleet.unanswered_jobs(jobs), plan.patience_s):
            late_jobs = fleet.unanswered_jobs(jobs)
        standstill.close()
        tally.undone += fleet.undone(erased)
        places, stood = fleet.partitions_of(), standstill.partitions()
        held_up = [camera for camera, number in places.items() if number in stood]
        for line in (*stood.values(), *standstill.jobs(), *(f"{job} is not done" for job in late_jobs)):
            tell(f"held up: {line}")
        page = _commands(fleet, folder, tally, tell)
        secrets = _secrets(fleet)
        strangers = [("a stranger's address in Redis", b"\n".join(listener.received))]
        strangers.append(("a stranger's camera", agent.received(foreign=True)))
        # Digest names the user to a camera that the secret is for; the password stays here.
        named = {"the camera's password": rtsp.PASSWORD}
        tally.leaked += leaks.find(named, [("a camera's digest", agent.received(foreign=False))])
        agent.close()
        everything = (
            *leaks.pages(fleet.address.metrics),
            *leaks.topics(fleet.bootstrap),
            *leaks.files(folder),
            *leaks.files(folder, "*.html"),
            *page,
            *strangers,
        )
        tally.leaked += leaks.find(secrets, everything)
        tally.crashes += _internal_errors(fleet)
        tally.crashes += fleet.deaths()
        committed = fleet.committed()
        tell(f"honest outcomes without an answer: {committed.unanswered}")
    finally:
        fleet.close()
    score = Score(
        strange=sum(tally.inputs.values()),
        kinds=len(tally.inputs),
        honest_expected=plan.expected,
        honest_committed=committed.answered,
        doubled=committed.doubled,
        crashes=len(tally.crashes),
        hung=len(tally.hung),
        leaked=len(tally.leaked),
        held_up=len(held_up),
        jobs_held_up=len(standstill.jobs()) + len(late_jobs),
        erasures_undone=len(tally.undone),
    )
    return score, tally


def kinds(folder: Path) -> list[str]:
    """Every kind of input, without a fleet."""
    chance, tally = random.Random(0), Tally()
    makers = topics.drafts([bytes(188)], {}, chance)
    makers["erasures.v1"] |= topics.erasures("", chance)
    names = [f"{topic} {way}" for topic, ways in makers.items() for way in ways]
    listener = directory.Listener()
    doors: list[Door] = [
        *_calls({"decode": 1, "prune-encode": 2}, {"decode": 1}, "token", chance, tally),
        directory.door(redis.Redis.from_url("redis://127.0.0.1:1/0"), ["decode-0"], listener, chance, tally),
        *_readers(folder, chance, tally),
    ]
    names += [kind for door in doors for kind in door.kinds]
    names += [f"rtsp {way}" for way in rtsp.CAMERAS_BY_WAY]
    listener.close()
    return names


def _doors(
    fleet: UpFleet,
    folder: Path,
    footage: Sequence[bytes],
    *,
    listener: directory.Listener,
    chance: random.Random,
    tally: Tally,
) -> list[Door]:
    address = fleet.address
    token = Path(address.grpc_token_file or "").read_text()
    options = client_options(fleet.bootstrap)
    makers = topics.drafts(footage, _harvest(fleet), chance)
    makers["erasures.v1"] |= topics.erasures(fleet.bootstrap, chance)
    return [
        *topics.doors(fleet.bootstrap, options, makers, tally),
        *_calls(address.grpc, address.metrics, token, chance, tally),
        directory.door(fleet.directory(), list(address.grpc), listener, chance, tally),
        *_readers(folder, chance, tally),
    ]


def _calls(
    grpc: dict[str, int], pages: dict[str, int], token: str, chance: random.Random, tally: Tally
) -> Iterable[Door]:
    for name, port in grpc.items():
        stage = name.rsplit("-", 1)[0]
        if stage in (Stage.DECODE, Stage.PRUNE_ENCODE):
            yield calls.grpc_door(f"127.0.0.1:{port}", stage, token, chance, tally)
    yield calls.pages_door(pages, chance, tally)


def _readers(folder: Path, chance: random.Random, tally: Tally) -> Iterable[Door]:
    place = folder / "strange-folders"
    place.mkdir(exist_ok=True)
    logging.disable(logging.CRITICAL)
    yield readers.replies_door(place, chance, tally)
    yield readers.memory_door(place, chance, tally)
    yield readers.checkpoint_door(place, MODEL, chance, tally)
    yield readers.data_door(place, tally)


def _harvest(fleet: UpFleet) -> dict[str, list[bytes]]:
    """Honest records under strangers' names."""
    out: dict[str, list[bytes]] = {}
    for topic in all_topics():
        kind = message_kind(topic.name)
        # Of erasures.v1 the key says what a record is: those of a fleet that runs are its members.
        if kind is None or topic.name in ("watches.v1", "erasures.v1", "labels.v1"):
            continue
        records = fleet.harvest(topic.name, _HARVEST)
        out[topic.name] = [
            _renamed(topic.name, value, topics.CAMERAS[number % len(topics.CAMERAS)])
            for number, value in enumerate(records)
        ]
    return out


def _renamed(topic: str, value: bytes, camera: str) -> bytes:
    message: Message = read_record(topic, value)
    if message.DESCRIPTOR.fields_by_name.get("camera"):
        message.camera = camera  # type: ignore[attr-defined]
    return to_json(message) if value.startswith(b"{") else message.SerializeToString()


def _agent(fleet: UpFleet, folder: Path, tally: Tally) -> rtsp.Agent:
    place = folder / "agent"
    place.mkdir()
    return rtsp.Agent(place, fleet.environment(), client_options(fleet.bootstrap), tally)


def _ask(fleet: UpFleet, folder: Path, film: dict[str, list[Piece]]) -> list[str]:
    """Honest jobs about honest footage, one for each partition about."""
    recording = folder / "films" / "honest.ts"
    recording.write_bytes(b"".join(piece.data for piece in next(iter(film.values()))))
    jobs = [f"honest-{number}" for number in range(4)]
    for job in jobs:
        fleet.ask(job, recording)
    return jobs


def _attack(
    fleet: UpFleet, doors: Sequence[Door], chance: random.Random, tell: Tell, standstill: Standstill
) -> None:
    """Every input of every door in random order; each service is killed twice meanwhile."""
    attempts = [
        (door.name, send) for door in doors for send, count in door.ways.values() for _ in range(count)
    ]
    chance.shuffle(attempts)
    deaths = {
        round(len(attempts) * share): stage
        for share, stage in zip((0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.99), (*Stage, *Stage), strict=True)
    }
    for number, (_, send) in enumerate(attempts):
        if number in deaths:
            tell(f"{number} of {len(attempts)} inputs; {deaths[number]} is killed")
            standstill.killed(deaths[number])
            fleet.kill(deaths[number])
        send()


def _settle(fleet: UpFleet, publisher: Publisher, plan: Plan, tally: Tally, tell: Tell) -> None:
    """Until the honest cameras have their outcomes and every stage has read its input."""

    def complete() -> bool:
        committed = fleet.committed()
        return publisher.done and committed.answered + committed.unanswered >= plan.expected

    tell("the strangers have gone")
    if not _until(complete, plan.patience_s):
        tally.hung.append(f"honest outcomes did not come within {plan.patience_s:g} s: {fleet.committed()}")
    tell("the honest cameras are through")
    if not _until(lambda: not any(fleet.lags().values()), _SETTLED_S + plan.patience_s):
        tally.hung.append(f"records that nobody reads: {fleet.lags()}")
    for name, port in fleet.address.metrics.items():
        place, data = next(iter(leaks.pages({name: port})), ("", b""))
        if not data:
            tally.hung.append(f"{place or name} does not answer")


def _commands(fleet: UpFleet, folder: Path, tally: Tally, tell: Tell) -> list[leaks.Place]:
    """Commands over what strangers wrote: no traceback, nothing that a terminal obeys."""
    out = []
    for words in _COMMANDS:
        name = "lookout " + " ".join(words)
        command = [sys.executable, "-m", "lookout.cli", *words, "--bootstrap", fleet.bootstrap]
        if words == ("doctor",):
            command = command[:-2]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            tally.hung.append(f"{name} did not end")
            continue
        text = done.stdout + done.stderr
        out.append((name, text))
        if b"Traceback" in text or b"internal error" in text.lower():
            tally.crashes.append(f"{name}: {text[-400:].decode(errors='replace')}")
        if strange := set(text.decode("utf-8", "replace")) & set("\x1b\x9b\x07\x00\u202e\u2066"):
            tally.crashes.append(f"{name} prints {strange!r}")
        tell(f"{name}: exit code {done.returncode}, {len(text)} bytes")
    return out


def _secrets(fleet: UpFleet) -> dict[str, str]:
    """What no stranger may read."""
    return {
        **fleet.secrets(),
        "the camera's password": rtsp.PASSWORD,
        "the camera's user name": rtsp.USER,
    }


def _internal_errors(fleet: UpFleet) -> list[str]:
    """Records at which a stage failed for no known reason: a line for each stage and error."""
    out = set()
    for source in (flow.source for flow in PIPELINE.values()):
        with reading(fleet.bootstrap, [dead_letters(source).name], Position(oldest=True)) as reader:
            for record in reader.until_now():
                pairs = record.headers() or []
                pairs = list(pairs.items()) if isinstance(pairs, dict) else pairs
                reason = headers.text(pairs, headers.REASON)
                if reason in ("internal-error", "overdue"):
                    out.add(f"{source.name}: {reason}: {headers.text(pairs, headers.DETAIL) or '':.200}")
    return sorted(out)


def _until(what: Callable[[], bool], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(1.0)
    return False
