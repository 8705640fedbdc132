"""A fleet whose prune-encode has the vision half of the checkpoint alone gives prefill what it wants."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.local import Fleet
from lookout.models import TINY
from lookout.models.digest import folder_digest
from lookout.models.vision_half import write_vision_half
from lookout.wire import Stage
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import pieces

pytestmark = [pytest.mark.fleet, pytest.mark.long]

STRIDES = 4


def test_prune_encode_with_the_half_answers_for_the_whole(tmp_path: Path) -> None:
    half = tmp_path / "half"
    write_vision_half(TINY, half)
    own = {Stage.DECODE: {"silence_s": "86400"}, Stage.PRUNE_ENCODE: {"model_dir": str(half)}}
    settings = {
        "model_dir": str(TINY),
        "model_digest": folder_digest(TINY),
        "stride_s": str(run.STRIDE_S),
        "window_s": str(run.WINDOW_S),
    }
    stages = (Stage.DECODE, Stage.PRUNE_ENCODE, Stage.PREFILL)
    film = pieces("cam-0", 0, int(STRIDES * run.STRIDE_S), run.STRIDE_S)
    with Fleet(
        tmp_path / "fleet", settings=settings, stage_settings=own, stages=stages, open_servers=True
    ) as fleet:
        run.watch(fleet.bootstrap)
        publisher = run.Publisher(fleet.bootstrap, film, pace=None)
        publisher.start()
        expected = STRIDES * len(run.QUESTIONS)
        eventually(
            lambda: (fleet.supervise(), outcomes.read(fleet.bootstrap).outcomes >= expected)[-1],
            seconds=200.0,
            every=0.5,
        )
        committed = outcomes.read(fleet.bootstrap)
    assert outcomes.kinds(committed) == {"OUTCOME_ANSWERED": expected}
    verdicts = [verdict for copies in committed.verdicts.values() for verdict in copies]
    assert len(verdicts) == expected
    assert {verdict.model_digest for verdict in verdicts} == {folder_digest(TINY)}
