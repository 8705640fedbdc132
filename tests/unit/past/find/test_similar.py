"""Spans that look like a marked region, on a rendered world."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from lookout.past.find.finding import Finder
from lookout.past.find.similar import RegionError, compared_with, region_keys, similar_spans
from lookout.past.find.spans import ranked_spans
from lookout.past.find.types import FindQuestion, Hit, Region
from lookout.rules.types import Zone
from lookout.v1.memory_pb2 import FindSummary
from tests.find_world import (
    START_US,
    FolderMemory,
    Spec,
    World,
    WorldRecords,
    moved_part,
    past_windows,
    settings,
)

pytestmark = pytest.mark.long

LYING = "Is anyone lying on the ground?"
SPAN_US = 20_000_000


@cache
def world() -> World:
    """Somebody falls in the second minute of `ward`, and vehicles pass in that of `yard`."""
    made = World(Path(tempfile.mkdtemp()))
    made.film(Spec("ward", "room", 5, 2, {1: "lying"}))
    made.film(Spec("yard", "carpark", 6, 3, {1: "vehicle", 2: "vehicle"}))
    return made


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """Close the world's chapters at the end."""
    yield
    world().folder.close()
    world.cache_clear()


def finder() -> Finder:
    return Finder(FolderMemory(world()), WorldRecords(world()), past_windows(world()))


def moved(camera: str, after_s: float) -> Region:
    """What moves in a camera after so many seconds."""
    filmed = world().cameras[camera]
    for index, block in sorted(filmed.blocks.items()):
        zone = moved_part(block)
        if index * settings().stride_s >= after_s and zone is not None:
            return Region(camera, START_US + index * settings().stride_us, zone)
    raise AssertionError(f"nothing moves in {camera} after {after_s} s")


@pytest.mark.long
def test_a_region_finds_the_time_at_which_something_like_it_was_seen() -> None:
    """A vehicle of the second minute: the rest of its minute and the next one come before the empty first."""
    region = moved("yard", 70)
    search = finder()
    pasts, _ = search.memory.pasts(["yard"])
    ranked = ranked_spans(*compared_with(search.keys_of(region), pasts), SPAN_US)
    busy = [span.begin_us >= START_US + 60_000_000 for span in ranked.part(0)]
    places = {kind: np.mean([n for n, one in enumerate(busy) if one == kind]) for kind in (True, False)}
    assert places[True] < places[False]
    assert busy[0]
    assert ranked.scores(0) == sorted(ranked.scores(0), reverse=True)


def test_the_camera_that_shows_such_a_thing_comes_first() -> None:
    region = moved("yard", 70)
    search = finder()
    pasts, _ = search.memory.pasts(["*"])
    spans = similar_spans(pasts, search.keys_of(region), region, SPAN_US)
    assert spans[0][0].camera == "yard"
    assert all(score > 0 for _, score in spans)
    assert [score for _, score in spans] == sorted((score for _, score in spans), reverse=True)
    own = region.time_us // SPAN_US * SPAN_US
    assert not any(span.camera == "yard" and span.begin_us == own for span, _ in spans)
    chosen = [span for span, _ in spans]
    assert not any(span.after in chosen for span in chosen)
    assert len(similar_spans(pasts, search.keys_of(region), region, SPAN_US, limit=1)) == 1


def test_keys_are_those_of_the_tokens_inside_alone() -> None:
    """The mean over two halves, by their tokens, is that of the whole picture."""
    whole = moved("ward", 65)
    left = Zone(((0, 0), (0.5, 0), (0.5, 1), (0, 1)))
    right = Zone(((0.5, 0), (1, 0), (1, 1), (0.5, 1)))
    index = (whole.time_us - START_US) // settings().stride_us
    frames = world().cameras["ward"].blocks[index].frames
    cols = np.concatenate([frame.kept % frame.keep.shape[1] for frame in frames])
    share = float((cols < frames[0].keep.shape[1] / 2).mean())
    search = finder()
    keys = {zone: search.keys_of(replace(whole, zone=zone)) for zone in (left, right, None)}
    torch.testing.assert_close(
        share * keys[left] + (1 - share) * keys[right], keys[None], atol=1e-4, rtol=1e-4
    )


def test_what_cannot_be_looked_for_is_named() -> None:
    search, region = finder(), moved("ward", 65)
    nothing = Zone(((0, 0), (1e-6, 0), (1e-6, 1e-6)))
    with pytest.raises(RegionError, match="pruning kept no token in the region of camera ward"):
        search.keys_of(replace(region, zone=nothing))
    with pytest.raises(RegionError, match="no pictures of camera ward at that time"):
        search.keys_of(replace(region, time_us=START_US - 10_000_000))
    with pytest.raises(RegionError, match="camera ward was erased at that time"):
        replace(search, hidden=lambda *time: True).keys_of(region)
    assert region_keys(search.windows, search.records.near("ward", 0, 0), region).shape[0] > 0


def test_a_question_about_a_region_is_verified_as_any_other() -> None:
    """Spans are ranked by what looks like the person on the ground; hits have exact answers all the same."""
    events = list(finder().find(FindQuestion(LYING, ("ward", "yard"), like=moved("ward", 80))))
    summary = events[-1]
    assert isinstance(summary, FindSummary)
    hits = [event for event in events if isinstance(event, Hit)]
    assert hits
    for hit in hits:
        truth = world().cameras[hit.camera].p_yes["lying"][hit.verdict.window]
        assert hit.p_yes == pytest.approx(truth, abs=1e-4)
