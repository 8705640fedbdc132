"""Ranking by visual or by semantic representatives, over the cameras of `bench.find`.

Redis holds the mean key of each visual cluster. A visual cluster has several semantic ones in every layer:
their mean keys say more of it, and are more bytes. Each way ranks all spans for each search:

- visual: what the product does
- semantic: the semantic clusters of the same layers
- semantic-cut: of those the largest, as many as have the bytes of the visual ones
- semantic-layer: the semantic clusters of the layer that ranks best for the other half of the searches

Moments among the first 20: those with a window that ends in one of the first 20 spans, of 20 or of all. The
share before: of all spans, those ranked before a moment's best one; half by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import torch

from lookout.models import DEMO_QUESTIONS
from lookout.models.engines.transformers.memory.queries import question_queries
from lookout.past.find.spans import PastSpan, ranked_spans
from lookout.past.memory.catalogue import IndexRange, LayerScenes
from lookout.past.memory.ranking import CameraPast, Landmarks, compared_layers, landmarks_of
from tests.find_world import START_US, World, engine, settings

FIRST: Final = 20
#: numbers of a cluster besides its key: begin, end, tokens
_NUMBERS: Final = 3 * 8


class Asked(Protocol):
    """A search: a question, its cameras, and the moments of its truth (camera, first and last window)."""

    question: str
    truth: list[tuple[str, int, int]]

    @property
    def cameras(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Representatives:
    """The pasts of all cameras in one way: one for each layer, whose scores are averaged."""

    layers: Sequence[Mapping[str, CameraPast]]

    @property
    def bytes_camera(self) -> float:
        marks = [mark for layer in self.layers for past in layer.values() for mark in past.landmarks]
        size = sum(mark.keys.nbytes + _NUMBERS * len(mark.begin_us) for mark in marks)
        return size / len(self.layers[0])


def by_ranking(
    world: World,
    searches: Sequence[Asked],
    interval: Callable[[Sequence[tuple[float, float]]], list[float]],
) -> dict[str, Any]:
    """What each way of ranking reaches, with 95 % intervals over cameras.

    Args:
        world: The cameras.
        searches: Questions and their truth.
        interval: Of a ratio of sums.
    """
    visual = _visual(world)
    semantic = _semantic(world)
    ways: dict[str, Callable[[Asked], _Representatives]] = {
        "visual": lambda search: visual,
        "semantic": lambda search: semantic,
    }
    cut = _Representatives([_largest(own, visual) for own in semantic.layers])
    ways["semantic-cut"] = lambda search: cut
    best = {half: _best_layer(semantic, [s for s in searches if _half(s) != half]) for half in "ab"}
    ways["semantic-layer"] = lambda search: _Representatives([semantic.layers[best[_half(search)]]])
    blocks = np.mean([len(filmed.blocks) for filmed in world.cameras.values()])
    hours = float(blocks) * settings().stride_s / 3600
    out: dict[str, Any] = {}
    first: list[tuple[float, float]] = []
    for name, way in ways.items():
        reached, before = _counted(way, searches)
        first = first or before
        more = [(own - base, of) for (own, of), (base, _) in zip(before, first, strict=True)]
        out[name] = {
            "ranked_20": _ratio(reached),
            "ranked_20_interval": interval(reached),
            "before": _ratio(before),
            "before_interval": interval(before),
            "more_than_visual": interval(more),
            "bytes_camera_hour": round(_size(way, searches) / hours),
        }
    return out


def _half(search: Asked) -> str:
    return min(search.cameras)[0]


def _size(way: Callable[[Asked], _Representatives], searches: Sequence[Asked]) -> float:
    return float(np.mean([way(search).bytes_camera for search in searches]))


def _visual(world: World) -> _Representatives:
    """The landmarks of the product, layer by layer."""
    whole: dict[str, list[Landmarks]] = {}
    for facts in world.folder.chapters():
        whole.setdefault(facts.camera, []).append(landmarks_of(*world.folder.read(facts.name)))
    count = len(next(iter(whole.values()))[0].layers)
    return _Representatives(
        [
            {
                camera: CameraPast(
                    [(int(mark.begin_us.min()), int(mark.end_us.max())) for mark in marks],
                    [replace(mark, keys=mark.keys[[n]], layers=mark.layers[[n]]) for mark in marks],
                )
                for camera, marks in whole.items()
            }
            for n in range(count)
        ]
    )


def _semantic(world: World) -> _Representatives:
    """The mean keys of all semantic clusters of the layers that the product compares."""
    layers = compared_layers(engine().kv_shape.layers)
    out: list[dict[str, CameraPast]] = [{} for _ in layers]
    for facts in world.folder.chapters():
        chapter, files = world.folder.read(facts.name)
        head = chapter.head
        times = head.times_us + chapter.origin_us
        for number, layer in enumerate(layers):
            place, visual = head.scenes[layer]
            scenes = LayerScenes.unpacked(files.read([place])[0], visual, head.shape)
            places = [scenes.index_range(head, n) for n in range(visual)]
            ranges = [
                IndexRange.unpacked(data, int(scenes.clusters[n]), int(scenes.counts[n]), head)
                for n, data in enumerate(files.read(places))
            ]
            blocks = [block for block in head.window if block.rows]
            keys = [own.keys.numpy() for own in ranges]
            keys += [_mean(files.read([block.data[layer]])[0], head.shape) for block in blocks]
            first = np.concatenate([*(own.first for own in ranges), [block.first_frame for block in blocks]])
            ends = [block.first_frame + block.frames - 1 for block in blocks]
            last = np.concatenate([*(own.last for own in ranges), ends])
            tokens = np.concatenate([*(own.counts for own in ranges), [block.rows for block in blocks]])
            mark = Landmarks(
                np.concatenate(keys).astype(np.float16)[None],
                np.array([layer]),
                times[first.astype(np.int64)],
                times[last.astype(np.int64)],
                tokens.astype(np.int64),
                head.version,
            )
            past = out[number].setdefault(facts.camera, CameraPast())
            past.chapters.append((facts.begin_us, facts.end_us))
            past.landmarks.append(mark)
    return _Representatives(out)


def _mean(data: bytes, shape: Any) -> np.ndarray:
    """The mean key [1, width] of a block that is read whole."""
    rows = torch.frombuffer(bytearray(data), dtype=shape.dtype).view(-1, 2, shape.width)
    mean: np.ndarray = rows[:, 0].float().mean(0, keepdim=True).numpy()
    return mean


def _largest(semantic: Mapping[str, CameraPast], visual: _Representatives) -> dict[str, CameraPast]:
    """Of each chapter the largest semantic clusters, as many as it has visual ones."""
    out: dict[str, CameraPast] = {}
    for camera, past in semantic.items():
        counts = [len(mark.begin_us) for mark in visual.layers[0][camera].landmarks]
        marks = [
            _part(mark, np.sort(np.argsort(-mark.tokens, kind="stable")[:count]))
            for mark, count in zip(past.landmarks, counts, strict=True)
        ]
        out[camera] = CameraPast(past.chapters, marks)
    return out


def _part(mark: Landmarks, places: np.ndarray) -> Landmarks:
    return replace(
        mark,
        keys=mark.keys[:, places],
        begin_us=mark.begin_us[places],
        end_us=mark.end_us[places],
        tokens=mark.tokens[places],
    )


def _ranked(ways: _Representatives, search: Asked) -> list[PastSpan]:
    """The spans of a search's cameras, the most promising first: by their mean score over layers."""
    queries = question_queries(engine(), DEMO_QUESTIONS[search.question])
    total: dict[PastSpan, float] = {}
    for layer in ways.layers:
        own = {camera: past for camera, past in layer.items() if camera in search.cameras}
        spans = ranked_spans(own, queries, settings().window_us)
        for span, score in zip(spans.part(0), spans.score.tolist(), strict=True):
            total[span] = total.get(span, 0.0) + score
    return sorted(total, key=lambda span: (-total[span], span))


def _places(spans: Sequence[PastSpan], search: Asked) -> list[tuple[str, int]]:
    """Of each moment of the truth its camera, and how many spans come before its best one."""
    place = {span: number for number, span in enumerate(spans)}
    stride_us, length_us = settings().stride_us, settings().window_us
    out: list[tuple[str, int]] = []
    for camera, first, last in search.truth:
        ends = [START_US + (index + 1) * stride_us for index in range(first, last + 1)]
        begins = {(end_us - 1) // length_us * length_us for end_us in ends}
        reached = [place.get(PastSpan(camera, begin, begin + length_us), len(spans)) for begin in begins]
        out.append((camera, min(reached)))
    return out


def _best_layer(semantic: _Representatives, searches: Sequence[Asked]) -> int:
    """The layer after which the fewest spans come before a moment."""

    def before(layer: Mapping[str, CameraPast]) -> float:
        shares: list[float] = []
        for search in searches:
            spans = _ranked(_Representatives([layer]), search)
            shares += [number / len(spans) for _, number in _places(spans, search)]
        return float(np.mean(shares))

    return int(np.argmin([before(layer) for layer in semantic.layers]))


def _counted(
    way: Callable[[Asked], _Representatives], searches: Sequence[Asked]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Of each camera in each search: moments among the first spans, of how many; and the shares of spans
    before its moments, of how many moments."""
    reached: list[tuple[float, float]] = []
    before: list[tuple[float, float]] = []
    for search in searches:
        spans = _ranked(way(search), search)
        places = _places(spans, search)
        weight = min(FIRST, len(places)) / max(1, len(places))
        for camera in search.cameras:
            own = [number for name, number in places if name == camera]
            reached.append((sum(number < FIRST for number in own), weight * len(own)))
            before.append((sum(number / len(spans) for number in own), len(own)))
    return reached, before


def _ratio(values: Sequence[tuple[float, float]]) -> float:
    return round(sum(one for one, _ in values) / max(1e-9, sum(of for _, of in values)), 3)
