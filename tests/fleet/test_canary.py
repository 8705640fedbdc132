"""A canary answers some cameras with another model while its processes and the fleet's are killed.

Each window of each camera has one verdict of the fleet, and one of the canary where it is tried; no alert
comes from the canary; the comparison says what both models, computed again from Kafka, say.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lookout import rules
from lookout.local import Fleet
from lookout.models import TINY
from lookout.models.digest import folder_digest
from lookout.rules.messages import verdict_of
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import CANARY_STAGES, CANARY_VERDICTS, Stage, from_json
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import Piece, pieces

pytestmark = pytest.mark.fleet

CAMERAS, SHARE = 6, 0.5
STRIDES, BEFORE = 14, 4  # windows of each camera; those that are decided before the canary begins
BLOCKS = int(run.WINDOW_S / run.STRIDE_S)
SETTINGS = {"stride_s": str(run.STRIDE_S), "window_s": str(run.WINDOW_S)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint like the bundled one, with other weights."""
    folder = tmp_path / "new"
    shutil.copytree(TINY, folder)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: 1.03 * each for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


@pytest.fixture
def fleet(tmp_path: Path, model: Path) -> Iterator[Fleet]:
    settings = {"model_dir": str(TINY), **SETTINGS, "session_timeout_s": "6"}
    with Fleet(
        tmp_path / "fleet",
        settings=settings,
        stage_settings={Stage.DECODE: {"silence_s": "86400"}},
        open_servers=True,
        canary={"model_dir": str(model), "canary": str(SHARE)},
    ) as running:
        run.watch(running.bootstrap)
        yield running


def tried(camera: str) -> bool:
    """Whether the canary is tried on a camera, by the rule that its prune-encode follows."""
    settings = PruneEncodeSettings.model_construct(canary=SHARE)
    return settings.tries(camera)


def canary_verdicts(fleet: Fleet) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for value in outcomes._values(fleet.bootstrap, CANARY_VERDICTS.name):
        verdict = from_json(value, Verdict)
        found.setdefault(verdict.id, []).append(verdict)
    return found


def play(fleet: Fleet, film: list[Piece], first: int, last: int, kills: int) -> None:
    """Some strides of every camera; so many kills while they are decided."""
    begin, end = first * run.STRIDE_S, last * run.STRIDE_S
    publisher = run.Publisher(
        fleet.bootstrap,
        [piece for piece in film if begin <= piece.start_s < end],
        pace=2.0 if kills else None,
    )
    publisher.start()
    draw = random.Random(7)
    victims = [service for service in fleet.services if service.stage != Stage.ALERTS]
    for victim in draw.sample(victims, kills):
        if (pid := victim.pid) is not None:
            os.kill(pid, 9)
        eventually(lambda: (fleet.supervise(), victim.ready())[-1], seconds=300.0, every=0.5)  # noqa: B023
    expected = CAMERAS * len(run.QUESTIONS) * last
    eventually(
        lambda: (fleet.supervise(), publisher.done and outcomes.read(fleet.bootstrap).outcomes >= expected)[
            -1
        ],
        seconds=600.0,
        every=1.0,
    )


def opened(verdicts: list[Verdict]) -> Counter[tuple[str, str]]:
    """Incidents that the rules open, by camera and watch."""
    states: dict[tuple[str, str], rules.WatchState] = {}
    found: Counter[tuple[str, str]] = Counter()
    for verdict in sorted(verdicts, key=lambda each: (each.epoch, each.window)):
        place = verdict.camera, verdict.watch
        states[place], events = rules.step(states.get(place), verdict_of(verdict), verdict.id)
        found[place] += sum(event.kind is rules.EventKind.OPENED for event in events)
    return +found


def command(fleet: Fleet, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lookout.cli", *words, "--bootstrap", fleet.bootstrap],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_canary_under_kills(fleet: Fleet, model: Path) -> None:
    cameras = [f"cam-{number}" for number in range(CAMERAS)]
    chosen = [camera for camera in cameras if tried(camera)]
    assert 0 < len(chosen) < CAMERAS
    film = [
        piece
        for number, camera in enumerate(cameras)
        for piece in pieces(camera, number, int(STRIDES * run.STRIDE_S), run.STRIDE_S)
    ]
    canaries = [service for service in fleet.services if service.stage in CANARY_STAGES]
    for service in canaries:
        fleet.services.remove(service)
        service.stop(patience=30.0)
    play(fleet, film, 0, BEFORE, kills=0)
    for service in canaries:
        fleet.services.append(service)
        service.start()
    eventually(lambda: all(service.ready() for service in canaries), seconds=300.0, every=0.5)
    play(fleet, film, BEFORE, STRIDES, kills=len(fleet.services) - 1)
    compared = len(chosen) * len(run.QUESTIONS) * (STRIDES - BEFORE)
    eventually(
        lambda: (fleet.supervise(), len(canary_verdicts(fleet)) >= compared)[-1], seconds=300.0, every=1.0
    )

    live, canary = outcomes.read(fleet.bootstrap), canary_verdicts(fleet)
    assert live.outcomes == CAMERAS * len(run.QUESTIONS) * STRIDES
    assert {len(each) for each in (*live.verdicts.values(), *canary.values())} == {1}
    windows = {key: each for key, (each,) in live.verdicts.items()}
    assert set(canary) == {
        key for key, each in windows.items() if each.camera in chosen and each.window >= BEFORE
    }
    assert {each.model_digest for each in windows.values()} == {folder_digest(TINY)}
    assert {each.model_digest for (each,) in canary.values()} == {folder_digest(model)}

    alerts = [each for (each,) in live.alerts.values() if each.kind == Alert.KIND_OPENED]
    assert Counter((each.camera, each.watch) for each in alerts) == opened(list(windows.values()))

    answer = json.loads(command(fleet, "canary", "--json", "--windows", "1", "--differ", "1").stdout)
    pairs = [
        (windows[key].p_yes, each.p_yes, windows[key].rule.threshold)
        for key, (each,) in canary.items()
        if each.window >= BEFORE + BLOCKS - 1
    ]
    assert answer["pairs"] == len(pairs) == len(chosen) * len(run.QUESTIONS) * (STRIDES - BEFORE - BLOCKS + 1)
    assert answer["partial"] == len(canary) - len(pairs)
    assert answer["differ"] == sum((one >= limit) != (other >= limit) for one, other, limit in pairs)
    assert answer["mean_difference"] == pytest.approx(
        sum(abs(a - b) for a, b, _ in pairs) / len(pairs), abs=1e-6
    )
    assert answer["largest_difference"] > 0
    assert (answer["missing"], answer["doubled"], answer["alone"], answer["unanswered"]) == (0, 0, 0, {})
    assert answer["decision"] == "promote"
    waits = command(fleet, "canary", "--windows", "100000")
    assert (waits.returncode, waits.stdout[:6]) == (75, "wait: "), waits

    # Both models once more, out of Kafka: the verdicts that were compared are what they say.
    same = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    for folder, answered, environment in (
        (TINY, len(windows), {}),
        (model, len(canary), {"LOOKOUT_CANARY": str(SHARE)}),
    ):
        done = command(fleet, "verify", "--model", str(folder), *same, **environment)
        assert json.loads(done.stdout)["verified"] == answered, done
