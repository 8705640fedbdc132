"""The last release's own services are killed while cameras publish, and today's take their work over.

The old services run from the repository's history, in this environment: they wrote the checkpoints, the
records under way and the outcomes that today's services find on the same Kafka and Redis.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lookout.local import Fleet, Service
from lookout.models.digest import folder_digest
from lookout.services.controller import topics as topics_job
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import Stage
from tests import previous
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import Piece, pieces

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(1800)]

CAMERAS = 3
PART = 6  # strides of a camera that the old services finish; they are killed in as many more
STRIDES = 2 * PART


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The last release's packages; skipped where the history is not there."""
    try:
        return previous.unpack(tmp_path / "previous", "libs", "services")
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def fleet(tmp_path: Path, release: Path) -> Iterator[Fleet]:
    """Its services on a Kafka and a Redis."""
    settings = {
        "model_dir": str(model(release)),
        "stride_s": str(run.STRIDE_S),
        "window_s": str(run.WINDOW_S),
        "session_timeout_s": "6",
    }
    with Fleet(
        tmp_path / "fleet",
        settings=settings,
        stage_settings={Stage.DECODE: {"silence_s": "86400"}},
        python_path=release / "libs",
        open_servers=True,
    ) as running:
        run.watch(running.bootstrap)
        yield running


def model(release: Path) -> Path:
    """The model stays through the upgrade."""
    return release / "libs" / "lookout" / "models" / "tiny"


def package(service: Service) -> str:
    """Where a service's process has its code from, if not from this environment's packages."""
    variables = Path(f"/proc/{service.pid}/environ").read_bytes().decode().split("\0")
    return next((line.partition("=")[2] for line in variables if line.startswith("PYTHONPATH=")), "")


def upgrade(fleet: Fleet) -> None:
    """Kill every service without notice; today's start under the same names, in the same folders, once the
    topics are brought up to date as the chart's job does."""
    for service in fleet.services:
        assert service.pid is not None
        os.kill(service.pid, signal.SIGKILL)
    for service in fleet.services:
        service.stop(patience=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKOUT_MODE", "local")
        patch.setenv("LOOKOUT_BOOTSTRAP", fleet.bootstrap)
        assert topics_job.main(["--partitions=4", "--replication=1"]) == 0
    environments = {stage: fleet._environment(stage) for stage in Stage}
    for environment in environments.values():
        del environment["PYTHONPATH"]
    fleet.services = [Service(stage, fleet.folder, environments[stage]) for stage in Stage]
    for service in fleet.services:
        service.set_defaults(fleet._replicas(service.stage))
        service.start()


def publish(fleet: Fleet, film: Sequence[Piece]) -> run.Publisher:
    publisher = run.Publisher(fleet.bootstrap, film, pace=None)
    publisher.start()
    return publisher


def await_outcomes(fleet: Fleet, publisher: run.Publisher, count: int) -> None:
    def there() -> bool:
        fleet.supervise()
        return publisher.done and outcomes.read(fleet.bootstrap).outcomes >= count

    eventually(there, seconds=800.0, every=1.0)


def test_todays_services_go_on_where_the_last_release_was_killed(fleet: Fleet, release: Path) -> None:
    assert {package(service) for service in fleet.services} == {str(release / "libs")}
    film = [
        piece
        for number in range(CAMERAS)
        for piece in pieces(f"cam-{number}", number, int(STRIDES * run.STRIDE_S), run.STRIDE_S)
    ]
    half_s = PART * run.STRIDE_S
    windows = CAMERAS * len(run.QUESTIONS)
    await_outcomes(fleet, publish(fleet, [piece for piece in film if piece.start_s < half_s]), windows * PART)
    before = outcomes.read(fleet.bootstrap)
    rest = publish(fleet, [piece for piece in film if piece.start_s >= half_s])
    # In the middle of the second half: records of every stage are under way.
    eventually(lambda: outcomes.read(fleet.bootstrap).outcomes > before.outcomes, seconds=400.0, every=0.2)
    upgrade(fleet)
    await_outcomes(fleet, rest, windows * STRIDES)

    committed = outcomes.read(fleet.bootstrap)
    assert {package(service) for service in fleet.services} == {""}
    assert committed.outcomes == windows * STRIDES
    assert all(len(verdicts) == 1 for verdicts in committed.verdicts.values())
    assert all(len(alerts) == 1 for alerts in committed.alerts.values())
    assert set(before.verdicts) <= set(committed.verdicts)
    verdicts = [verdict for verdict, *_ in committed.verdicts.values()]
    assert Counter(verdict.outcome for verdict in verdicts) == {Verdict.OUTCOME_ANSWERED: windows * STRIDES}
    # One epoch each: the new services went on from the checkpoints of the old ones.
    assert len({(verdict.camera, verdict.epoch) for verdict in verdicts}) == CAMERAS
    assert {verdict.model_digest for verdict in verdicts} == {folder_digest(model(release))}
