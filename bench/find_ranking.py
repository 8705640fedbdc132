"""Ranking by visual or by semantic representatives, on the cameras of `bench.find`.

Redis holds the mean key of every fourth visual cluster, and recall projects these keys to a few directions. A
visual cluster has several semantic clusters in every layer; their mean keys describe it better but take more
bytes. Each way ranks all spans for each search:

- visual: by all visual clusters with all their keys
- every-2, every-4, every-8: by one cluster of so many, in order of time
- random-4, largest-4: by as many as in every-4, chosen at random, or those with the most tokens
- merged-4: by as many, after similar neighbours in time are merged (Ward)
- product: by every-4, projected to a few directions
- semantic: by the semantic clusters of the same layers
- semantic-cut: by the largest of these, with as many bytes as the visual ones
- semantic-layer: by the semantic clusters of the layer that ranks best for the other half of the searches

Moments among the first 20: those with a window that ends in one of the first 20 spans, as a share of all, or
of 20 if there are more. Share before: the share of all spans that are ranked before a moment's best span
(chance: a half).
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
from lookout.past.memory.ranking import CameraPast, KeySpace, Landmarks, compared_layers, landmarks_of
from tests.find_world import World, engine, settings

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
    space: KeySpace | None = None

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
    whole = _whole(world)
    visual = _by_layer(whole)
    semantic = _semantic(world)
    thin: dict[str, Callable[[Landmarks], Landmarks]] = {
        "visual": lambda mark: mark,
        **{f"every-{n}": lambda mark, n=n: mark.part(np.arange(len(mark))[::-n][::-1]) for n in (2, 4, 8)},  # type: ignore[misc]
        "random-4": lambda mark: mark.part(_drawn(len(mark))),
        "largest-4": lambda mark: mark.part(_most(mark.tokens, -(-len(mark) // 4))),
        "merged-4": lambda mark: _merged(mark, -(-len(mark) // 4)),
    }
    product = _few(_each(whole, thin["every-4"]))
    thinned = {name: _by_layer(_each(whole, how)) for name, how in thin.items()}
    ways: dict[str, Callable[[Asked], _Representatives]] = {
        **{name: lambda search, own=own: own for name, own in thinned.items()},  # type: ignore[misc]
        "product": lambda search: product,
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


def _whole(world: World) -> dict[str, CameraPast]:
    """The visual clusters of all chapters."""
    out: dict[str, CameraPast] = {}
    for facts in world.folder.chapters():
        past = out.setdefault(facts.camera, CameraPast())
        past.chapters.append((facts.begin_us, facts.end_us))
        past.landmarks.append(landmarks_of(*world.folder.read(facts.name), every=1))
    return out


def _each(pasts: Mapping[str, CameraPast], how: Callable[[Landmarks], Landmarks]) -> dict[str, CameraPast]:
    return {name: CameraPast(past.chapters, list(map(how, past.landmarks))) for name, past in pasts.items()}


def _by_layer(pasts: Mapping[str, CameraPast]) -> _Representatives:
    count = len(next(iter(pasts.values())).landmarks[0].layers)
    return _Representatives(
        [
            _each(pasts, lambda mark, n=n: replace(mark, keys=mark.keys[[n]], layers=mark.layers[[n]]))  # type: ignore[misc]
            for n in range(count)
        ]
    )


def _few(pasts: Mapping[str, CameraPast]) -> _Representatives:
    """As recall keeps them."""
    space = KeySpace.of([mark for past in pasts.values() for mark in past.landmarks])
    return _Representatives([_each(pasts, space.landmarks)], space)


def _drawn(count: int) -> np.ndarray:
    out: np.ndarray = np.sort(np.random.default_rng(count).permutation(count)[: -(-count // 4)])
    return out


def _most(tokens: np.ndarray, count: int) -> np.ndarray:
    out: np.ndarray = np.sort(np.argsort(-tokens, kind="stable")[:count])
    return out


def _merged(mark: Landmarks, count: int) -> Landmarks:
    """So many, each the mean of neighbours in time: again and again the two that differ least."""
    keys = list(mark.keys.astype(np.float32).transpose(1, 0, 2))
    begin, end, tokens = mark.begin_us.tolist(), mark.end_us.tolist(), mark.tokens.tolist()
    size = [1] * len(keys)
    while len(keys) > count:
        apart = [
            ((keys[i] - keys[i + 1]) ** 2).sum() * size[i] * size[i + 1] / (size[i] + size[i + 1])
            for i in range(len(keys) - 1)
        ]
        i = int(np.argmin(apart))
        keys[i] = (keys[i] * size[i] + keys[i + 1] * size[i + 1]) / (size[i] + size[i + 1])
        end[i] = max(end[i : i + 2])
        size[i], tokens[i] = sum(size[i : i + 2]), sum(tokens[i : i + 2])
        for column in (keys, begin, end, tokens, size):
            del column[i + 1]
    return replace(
        mark,
        keys=np.stack(keys, 1).astype(np.float16),
        begin_us=np.array(begin),
        end_us=np.array(end),
        tokens=np.array(tokens),
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
            mark.part(_most(mark.tokens, count)) for mark, count in zip(past.landmarks, counts, strict=True)
        ]
        out[camera] = CameraPast(past.chapters, marks)
    return out


def _ranked(ways: _Representatives, search: Asked) -> list[PastSpan]:
    """The spans of a search's cameras, the most promising first: by their mean score over layers."""
    queries = question_queries(engine(), DEMO_QUESTIONS[search.question])
    queries = queries if ways.space is None else ways.space.queries(queries)
    total: dict[PastSpan, float] = {}
    for layer in ways.layers:
        own = {camera: past for camera, past in layer.items() if camera in search.cameras}
        spans = ranked_spans(own, queries, settings().window_us)
        for span, score in zip(spans.part(0), spans.scores(0), strict=True):
            total[span] = total.get(span, 0.0) + score
    return sorted(total, key=lambda span: (-total[span], span))


def _places(spans: Sequence[PastSpan], search: Asked) -> list[tuple[str, int]]:
    """Of each moment of the truth its camera, and how many spans come before its best one."""
    place = {span: number for number, span in enumerate(spans)}
    stride_us, length_us = settings().stride_us, settings().window_us
    out: list[tuple[str, int]] = []
    for camera, first, last in search.truth:
        ends = [search.cameras[camera].begin_us + (index + 1) * stride_us for index in range(first, last + 1)]
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
