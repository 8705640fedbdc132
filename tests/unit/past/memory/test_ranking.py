"""Landmarks: what they are of a chapter, and what is not taken for landmarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lookout.past.find import spans
from lookout.past.find.spans import PastSpan, ranked_spans
from lookout.past.memory import HistoryError, Past, RangeCache
from lookout.past.memory.container import sealed
from lookout.past.memory.past import fetch_from
from lookout.past.memory.ranking import (
    DIRECTIONS,
    KEPT_EVERY,
    CameraPast,
    KeySpace,
    Landmarks,
    compared_layers,
    joined,
    landmarks_of,
)
from tests.chapters_world import fill, folder

SECOND_US = 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [False, True])
def test_landmarks_are_the_mean_keys_of_a_chapter_to_its_newest_block(tmp_path: Path, sealed: bool) -> None:
    chapters = folder(tmp_path)
    fill(chapters, range(8))
    if sealed:
        chapters.seal("gate")
    (facts,) = chapters.chapters()
    chapter, files = chapters.read(facts.name)
    marks = landmarks_of(chapter, files)
    past = Past([chapter], RangeCache(fetch_from({chapter.name: files}), 1 << 30))
    assert marks.layers.tolist() == compared_layers(chapter.head.shape.layers).tolist()
    blocks = past.window
    count = len(past.scenes[0][0].keys) + len(blocks)
    assert len(marks) == -(-count // KEPT_EVERY)
    for place, layer in enumerate(marks.layers.tolist()):
        clusters = past.scenes[0][layer].keys.to(torch.float16).numpy()
        means = [block.block.keys[layer].transpose(0, 1).flatten(1).mean(0).numpy() for block in blocks]
        for key in marks.keys[place]:
            assert (clusters == key).all(1).any() or np.isclose(key, means, atol=1e-2).all(1).any()
        if means:  # a growing chapter is ranked to its end
            assert np.isclose(marks.keys[place, -1], means[-1], atol=1e-2).all()
    assert facts.begin_us <= marks.begin_us[0]
    assert marks.end_us.max() == facts.end_us
    again = Landmarks.unpacked(marks.packed(), "here")
    assert all(
        np.array_equal(getattr(marks, name), getattr(again, name))
        for name in ("keys", "layers", "begin_us", "end_us", "tokens")
    )
    assert (again.version, again.model_digest) == (chapter.head.version, "m1")
    chapters.close()


def marks_at(*seconds: tuple[int, int, float]) -> Landmarks:
    """Clusters from one second to another whose key points so far along the query."""
    return Landmarks(
        keys=np.array([[[height, 1.0] for _, _, height in seconds]], np.float16),
        layers=np.array([1]),
        begin_us=np.array([begin * SECOND_US for begin, _, _ in seconds]),
        end_us=np.array([end * SECOND_US for _, end, _ in seconds]),
        tokens=np.ones(len(seconds), np.int64),
        version=1,
    )


QUERY = torch.tensor([[0.0, 9.0], [1.0, 0.0]])


def test_spans_are_ranked_over_cameras_by_their_best_cluster() -> None:
    pasts = {
        "a": CameraPast([(0, 39 * SECOND_US)], [marks_at((0, 9, 0.0), (10, 29, 2.0), (30, 39, 1.0))]),
        "b": CameraPast([(0, 19 * SECOND_US)], [marks_at((0, 9, 3.0), (10, 19, -1.0))]),
    }
    ranked = ranked_spans(pasts, QUERY, 10 * SECOND_US).part(0)
    names = [(span.camera, span.begin_us // SECOND_US) for span in ranked]
    assert names[0] == ("b", 0)
    assert names[1:3] == [("a", 20), ("a", 10)]
    assert names[-1] == ("b", 10)
    assert len(names) == 6
    assert ranked[0].after == PastSpan("b", 10 * SECOND_US, 20 * SECOND_US)
    assert ranked[0].after.before == ranked[0]


def test_a_span_without_landmarks_counts_as_an_average_one() -> None:
    pasts = {
        "known": CameraPast([(0, 19 * SECOND_US)], [marks_at((0, 9, 5.0), (10, 19, -5.0))]),
        "new": CameraPast([(0, 9 * SECOND_US)]),
    }
    assert [span.camera for span in ranked_spans(pasts, QUERY, 10 * SECOND_US).part(0)] == [
        "known",
        "new",
        "known",
    ]


def many(count: int, spread: int) -> dict[str, CameraPast]:
    """Cameras whose clusters are one a span, with keys that vary along a few directions."""
    draw = np.random.default_rng(count)
    basis = draw.normal(size=(spread, 3 * 64))
    pasts: dict[str, CameraPast] = {}
    for camera in range(8):
        keys = (draw.normal(size=(count, spread)) @ basis + 40).reshape(count, 3, 64).transpose(1, 0, 2)
        begin = np.arange(count) * 10 * SECOND_US
        marks = Landmarks(
            keys.astype(np.float16), np.array([0, 2, 3]), begin, begin + 1, np.ones(count, np.int64), 1
        )
        pasts[f"{camera}"] = CameraPast(
            [(0, int(begin[-1]))], [marks.part(slice(9)), marks.part(slice(9, count))]
        )
    return pasts


def test_the_first_spans_are_those_of_the_whole_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pasts = many(200, 20)
    query = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32))
    whole = ranked_spans(pasts, query, 7 * SECOND_US, 95 * SECOND_US, 1500 * SECOND_US)
    monkeypatch.setattr(spans, "_FIRST", 100)
    first = ranked_spans(pasts, query, 7 * SECOND_US, 95 * SECOND_US, 1500 * SECOND_US)
    assert first.part(0, 50) == whole.part(0, 50)
    assert first._all is None
    assert (len(first), first.part(0), first.scores(0)) == (len(whole), whole.part(0), whole.scores(0))


def test_few_directions_rank_as_all_keys_do() -> None:
    pasts = many(100, DIRECTIONS)
    query = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32))
    space = KeySpace.of([mark for past in pasts.values() for mark in past.landmarks])
    narrow = {
        camera: CameraPast(past.chapters, [joined(list(map(space.landmarks, past.landmarks)))])
        for camera, past in pasts.items()
    }
    expected = ranked_spans(pasts, query, 10 * SECOND_US)
    ranked = ranked_spans(narrow, space.queries(query), 10 * SECOND_US)
    assert narrow["0"].landmarks[0].keys.shape == (1, 100, DIRECTIONS)
    assert ranked.part(0, 5) == expected.part(0, 5)
    ratio = np.array(ranked.scores(0, 100)) / np.array(expected.scores(0, 100))
    assert np.allclose(ratio, ratio[0], atol=0.1)  # layers' scores are averaged, and then are no deviations


def test_a_time_limits_the_spans() -> None:
    pasts = {"a": CameraPast([(0, 99 * SECOND_US)])}
    ranked = ranked_spans(
        pasts, QUERY, 10 * SECOND_US, since_us=20 * SECOND_US, until_us=40 * SECOND_US
    ).part(0)
    assert sorted(span.begin_us // SECOND_US for span in ranked) == [20, 30]
    assert not len(ranked_spans({}, QUERY, SECOND_US))


def test_what_is_not_landmarks_is_refused() -> None:
    marks = marks_at((0, 9, 1.0), (10, 19, 1.0))
    for broken in (
        replace(marks, keys=marks.keys[:, :1]),
        replace(marks, keys=marks.keys.astype(np.float32)),
        replace(marks, keys=marks.keys * np.float16(np.inf)),
        replace(marks, layers=np.array([1, 2])),
        replace(marks, begin_us=marks.end_us + 1),
        replace(marks, tokens=marks.tokens[:1]),
    ):
        with pytest.raises(HistoryError, match="not valid landmarks"):
            Landmarks.unpacked(broken.packed(), "gate")
    with pytest.raises(HistoryError):
        Landmarks.unpacked(marks.packed()[:-1], "gate")
    names, body = ("keys", "layers", "begin", "end", "tokens"), bytes(1024)

    def header(layers: object, count: object, **more: object) -> bytes:
        shapes = [[layers, count, 8], [layers], *[[count]] * 3]
        arrays = [[name, "int64" if place else "float16", shapes[place]] for place, name in enumerate(names)]
        return sealed({"version": 1, "model_digest": "m", "arrays": arrays, **more}, body)

    assert len(Landmarks.unpacked(header(1, 2), "gate")) == 2
    for broken in (
        header(1, -1),
        header(-1, 2),
        header(1, 1 << 40),
        header(1, 10**30),
        header(1, 1.5),
        header(1, "2"),
        header(1, None),
        header(1, 2, version="first"),
        header(1, 2, arrays=[]),
        header(1, 2, arrays=[["keys"]]),
        header(1, 2, arrays=[["keys", "complex", [1]]]),
        header(1, 2, arrays=7),
    ):
        with pytest.raises(HistoryError, match="not valid landmarks"):
            Landmarks.unpacked(broken, "gate")
