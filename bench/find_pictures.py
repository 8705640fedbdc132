"""Search by a picture on the cameras of `bench.find`: moments that resemble a marked one, on other cameras.

As a person would, the bench marks what moves in the clearest window of a moment. Recall at 20 counts the
moments of the same question on all other cameras: the share of them, or of 20 if there are more, with a span
among the first 20.

- region: searches by the keys of the marked tokens
- whole: searches by the keys of the whole picture
- random: spans in random order
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from bench.find_world import KeptMemory
from lookout.past.find.finding import Finder
from lookout.past.find.similar import similar_spans
from lookout.past.find.spans import PastSpan
from lookout.past.find.types import Region
from lookout.past.memory.ranking import CameraPast
from tests.find_world import (
    Filmed,
    World,
    WorldRecords,
    moments,
    moved_part,
    past_windows,
    settings,
)

FIRST: Final = 20
EXAMPLES: Final = 8
"""Marked pictures of a question, each of another camera."""


def by_picture(
    world: World, questions: Sequence[str], interval: Callable[[Sequence[tuple[float, float]]], list[float]]
) -> dict[str, Any]:
    """Recall at 20 of each search, with its interval over marked pictures.

    Args:
        world: The cameras.
        questions: What moments are of.
        interval: Of a ratio of sums.
    """
    finder = Finder(KeptMemory(world), WorldRecords(world), past_windows(world))
    pasts = finder.memory.pasts(("*",))[0]
    begins_us = {camera: filmed.begin_us for camera, filmed in world.cameras.items()}
    reached: dict[str, list[tuple[float, float]]] = {name: [] for name in ("region", "whole", "random")}
    for question in questions:
        truth = [
            (camera, *own)
            for camera, filmed in world.cameras.items()
            for own in moments(filmed.p_yes[question])
        ]
        for region in list(_marked(world.cameras, question))[:EXAMPLES]:
            others = [moment for moment in truth if moment[0] != region.camera]
            for name, hits in _searched(finder, pasts, begins_us, region, others).items() if others else ():
                reached[name].append((hits, min(FIRST, len(others))))
    return {
        name: {
            "recall_20": round(sum(hit for hit, _ in counts) / max(1.0, sum(all_ for _, all_ in counts)), 3),
            "recall_20_interval": interval(counts),
            "pictures": len(counts),
        }
        for name, counts in reached.items()
    }


def _marked(cameras: Mapping[str, Filmed], question: str) -> Iterator[Region]:
    """What moves in the clearest window of each camera that has a moment."""
    for camera, filmed in sorted(cameras.items()):
        p_yes = filmed.p_yes[question]
        for index in sorted(p_yes, key=lambda index: -p_yes[index]):
            if p_yes[index] < 0.5:
                break
            zone = moved_part(filmed.blocks[index])
            if zone is not None:
                yield Region(camera, filmed.begin_us + index * settings().stride_us, zone)
                break


def _searched(
    finder: Finder,
    pasts: Mapping[str, CameraPast],
    begins_us: Mapping[str, int],
    region: Region,
    truth: Sequence[tuple[str, int, int]],
) -> dict[str, float]:
    """Moments that each search reaches on the other cameras."""
    others = {camera: past for camera, past in pasts.items() if camera != region.camera}
    length_us, out = settings().window_us, dict[str, float]()
    for name, marked in (("region", region), ("whole", replace(region, zone=None))):
        found = similar_spans(others, finder.keys_of(marked), marked, length_us, limit=FIRST)
        out[name] = _count(truth, begins_us, {span for span, _ in found})
    spans = [
        PastSpan(camera, begin_us, begin_us + length_us)
        for camera, past in others.items()
        for begin_us in range(past.chapters[0][0] // length_us * length_us, past.chapters[-1][1], length_us)
    ]
    draw = np.random.default_rng(0)
    chances = [
        _count(truth, begins_us, {spans[n] for n in draw.choice(len(spans), FIRST, replace=False)})
        for _ in range(20)
    ]
    return {**out, "random": float(np.mean(chances))}


def _count(
    truth: Sequence[tuple[str, int, int]], begins_us: Mapping[str, int], spans: Collection[PastSpan]
) -> int:
    """Moments with a window that ends in one of the spans, 20 at most."""
    stride_us, length_us = settings().stride_us, settings().window_us

    def is_reached(camera: str, first: int, last: int) -> bool:
        ends = [begins_us[camera] + (index + 1) * stride_us for index in range(first, last + 1)]
        begins = {(end_us - 1) // length_us * length_us for end_us in ends}
        return any(PastSpan(camera, begin_us, begin_us + length_us) in spans for begin_us in begins)

    return min(FIRST, sum(is_reached(*moment) for moment in truth))
