"""A camera's tenant through decode, prune-encode and prefill."""

from __future__ import annotations

from collections import Counter
from math import ceil
from pathlib import Path

from lookout.models import TINY
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.video.segments import cut
from lookout.wire import headers, label_headers
from tests.one_process_fleet import OneProcessFleet

ROOT = Path(__file__).parents[3]
QUESTION = "Is a person in view?"
STRIDE_US = 2_000_000
TENANTS = ("", "acme", "globex")


def test_a_camera_that_changes_its_tenant_loses_no_window_and_shows_none_to_the_other() -> None:
    """Two watches of two tenants on one camera, and one of all: each window has an outcome for those that
    ask, also where the new tenant's quota is used up."""
    watches = [Watch(id=name or "all", version=1, question=QUESTION, tenant=name) for name in TENANTS]
    quotas = {"tenant_quotas": '{"globex": {"questions": 0}}'}
    fleet = OneProcessFleet(TINY, *watches, camera="gate", prefill=quotas, window_s=6.0, stride_s=2.0)
    film = next((ROOT / "libs/watchbench/films").glob("room-*.mp4"))
    segments = list(cut(film, target_s=2.0))[:6]
    try:
        for number, segment in enumerate(segments):
            tenant = "acme" if number < 3 else "globex"
            fleet.send(segment.data, headers=headers.encode(label_headers(Camera(tenant=tenant))))
        fleet.end()
    finally:
        fleet.close()
    verdicts = fleet.verdicts
    places = Counter((verdict.epoch, verdict.window, verdict.watch) for verdict in verdicts)
    assert set(places.values()) == {1}
    first, second = sorted({verdict.epoch for verdict in verdicts})
    asked = {(verdict.epoch, verdict.tenant, verdict.watch) for verdict in verdicts}
    assert asked == {
        (first, "acme", "all"),
        (first, "acme", "acme"),
        (second, "globex", "all"),
        (second, "globex", "globex"),
    }
    outcomes = Counter(
        (verdict.epoch == second, Verdict.Outcome.Name(verdict.outcome)[8:], verdict.reason.split(":")[0])
        for verdict in verdicts
        if verdict.watch == "all"
    )
    before = ceil(segments[3].start_us / STRIDE_US)
    after = ceil((segments[5].start_us + segments[5].duration_us - segments[3].start_us) / STRIDE_US)
    assert outcomes == {
        (False, "ANSWERED", ""): before,
        (False, "GAP", "tenant"): 1,
        (True, "SKIPPED", "quota"): after,
        (True, "GAP", "silence"): 1,
    }
    [reason] = {verdict.reason for verdict in verdicts if verdict.outcome == Verdict.OUTCOME_SKIPPED}
    assert "tenant 'globex' used its 0 questions" in reason
