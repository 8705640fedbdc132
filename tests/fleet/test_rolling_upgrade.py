"""A new model rolls out beside the old one: both answer, each window from one model, no outcome is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file, save_file

from lookout.local import Fleet, Service
from lookout.models import TINY
from lookout.models.digest import folder_digest
from lookout.past.verification import verify
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import Stage
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import Piece, pieces
from tests.local_http import open_local

pytestmark = pytest.mark.fleet

CAMERAS = 8
STRIDES = 18  # of each camera, in three parts: with the old model, with both, with the new one
PART = STRIDES // 3
UPGRADED = (Stage.PRUNE_ENCODE, Stage.PREFILL)


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of one architecture whose weights differ."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        shutil.copytree(TINY, folder)
    weights = load_file(new / "model.safetensors")
    save_file(
        {name: 1.01 * each for name, each in weights.items()}, new / "model.safetensors", {"format": "pt"}
    )
    return old, new


@pytest.fixture
def fleet(tmp_path: Path, models: tuple[Path, Path]) -> Iterator[Fleet]:
    settings = {
        "model_dir": str(models[0]),
        "stride_s": str(run.STRIDE_S),
        "window_s": str(run.WINDOW_S),
        "static_member": "false",
        "session_timeout_s": "6",
    }
    own: dict[str, dict[str, str]] = {Stage.DECODE: {"silence_s": "86400"}}
    stages = (Stage.DECODE, *UPGRADED)
    with Fleet(
        tmp_path / "fleet", settings=settings, stage_settings=own, stages=stages, open_servers=True
    ) as running:
        run.watch(running.bootstrap)
        yield running


def add_release(fleet: Fleet, model: Path) -> list[Service]:
    """A second instance of each stage that computes with the model."""
    added = []
    for stage in UPGRADED:
        environment = {**fleet._environment(stage), "LOOKOUT_MODEL_DIR": str(model)}
        service = Service(stage, fleet.folder, environment, replica=1)
        fleet.services.append(service)
        service.set_defaults(fleet._replicas(stage))
        service.start()
        added.append(service)
    return added


def partitions(service: Service) -> float:
    """How many the instance has taken over."""
    with open_local(f"http://127.0.0.1:{service.metrics_port}/metrics", timeout=30.0) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found = {sample.name: sample.value for family in families for sample in family.samples}
    return found.get("lookout_partitions", 0.0) - found.get("lookout_takeovers_waiting", 0.0)


def publish(fleet: Fleet, film: Sequence[Piece], part: int) -> None:
    """One part of every camera, and wait for its outcomes."""
    first, last = part * PART * run.STRIDE_S, (part + 1) * PART * run.STRIDE_S
    publisher = run.Publisher(
        fleet.bootstrap, [piece for piece in film if first <= piece.start_s < last], pace=None
    )
    publisher.start()
    expected = CAMERAS * len(run.QUESTIONS) * PART * (part + 1)
    eventually(
        lambda: (fleet.supervise(), publisher.done and count(fleet) >= expected)[-1], seconds=600.0, every=0.5
    )


def count(fleet: Fleet) -> int:
    return outcomes.read(fleet.bootstrap).outcomes


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_two_models_side_by_side(fleet: Fleet, models: tuple[Path, Path]) -> None:
    film = [
        piece
        for number in range(CAMERAS)
        for piece in pieces(f"cam-{number}", number, int(STRIDES * run.STRIDE_S), run.STRIDE_S)
    ]
    publish(fleet, film, 0)
    added = add_release(fleet, models[1])
    eventually(lambda: all(each.ready() and partitions(each) > 0 for each in added), seconds=600.0, every=0.5)
    publish(fleet, film, 1)
    for service in [each for each in fleet.services if each.stage in UPGRADED and each not in added]:
        fleet.services.remove(service)
        service.stop(patience=30.0)
    eventually(lambda: all(partitions(each) == 4 for each in added), seconds=600.0, every=0.5)
    publish(fleet, film, 2)

    committed = outcomes.read(fleet.bootstrap)
    assert committed.outcomes == CAMERAS * len(run.QUESTIONS) * STRIDES
    assert all(len(each) == 1 for each in committed.verdicts.values())
    verdicts = [each for each, *_ in committed.verdicts.values()]
    kinds = {(each.outcome, each.reason.split(" ")[0]) for each in verdicts}
    assert kinds <= {(Verdict.OUTCOME_ANSWERED, ""), (Verdict.OUTCOME_DEGRADED, "encoded")}, kinds
    answers = Counter(each.model_digest for each in verdicts if each.outcome == Verdict.OUTCOME_ANSWERED)
    digests = [folder_digest(model) for model in models]
    assert set(answers) == set(digests)
    assert all(each.model_digest == digests[0] for each in verdicts if each.window < PART)
    for model, digest in zip(models, digests, strict=True):
        tally = verify(
            model,
            fleet.bootstrap,
            common={"stride_s": run.STRIDE_S, "window_s": run.WINDOW_S},
            tolerance=outcomes.SAME,
        )
        others = [each.reason for each in tally.unverified if "answered by model" not in each.reason]
        assert not others
        assert tally.counts["verified"] == answers[digest]
