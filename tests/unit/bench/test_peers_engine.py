"""What the bench beside other engines drops and averages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import watchbench
from bench import peers_engine
from bench.pages import page, plots
from bench.peers_engine import CUTS, METHODS, Camera, Side, Spent, dropped, f1, summary, table, thinned
from bench.peers_stock import Prompt, small_checkpoint
from bench.record import Record
from bench.windows import labelled
from lookout.models import TINY
from lookout.models.families import load_layout
from lookout.models.windows import StrideBlock
from tests.unit.models.engines.scenes import block

FILM = sorted((Path(next(iter(watchbench.__path__))) / "films").glob("*.mp4"))[0]


@pytest.fixture(scope="module")
def window() -> list[StrideBlock]:
    """Two blocks that keep every token."""
    return [block("internvl", "cam/0", index, frames=4, keep=1.1) for index in range(2)]


def test_tokens_are_dropped_by_a_rule_over_the_whole_window(window: list[StrideBlock]) -> None:
    def first(tokens: torch.Tensor, size: tuple[int, int, int], merge: int, rate: float) -> torch.Tensor:
        assert (len(tokens), size, merge) == (8 * 16, (8, 4, 4), 1)
        return torch.arange(len(tokens)) < (1 - rate) * len(tokens)

    out = dropped(window, first, 0.25)
    assert [len(frame.kept) for block in out for frame in block.frames] == [16, 16, 0, 0, 0, 0, 0, 0]
    assert torch.equal(out[0].frames[1].tokens, window[0].frames[1].tokens)


def test_frames_are_dropped_evenly(window: list[StrideBlock]) -> None:
    assert [len(block.frames) for block in thinned(window, 0.5)] == [2, 2]
    assert [len(block.frames) for block in thinned(window, 0.01)] == [1, 0]


def test_peers_are_compared_with_ours_and_with_dense_windows() -> None:
    def camera(shift: float) -> dict[str, Spent]:
        dense = Spent([[0.9, 0.1]], [4.0], [10.0], [100])
        ours = Spent([[0.9 - shift, 0.1]], [1.0], [2.0], [40])
        append = Spent([[0.2, 0.1]], [2.0], [5.0], [100])
        return {"resend": dense, "append": append, "ours": ours}

    rows = table([camera(0.0), camera(0.02)], [camera(0.0)])
    assert (rows["ours"]["dp"], rows["resend"]["time_over_ours"], rows["append"]["f1"]) == (0.005, 4.0, 0.0)
    line = summary({"rendered, 80 frames": {"equal": rows}, "real, 80 frames": {"equal": rows}}, 0.5)
    assert line == {
        "vs_resend": 4.0,
        "vs_append": 2.0,
        "vs_evs": None,
        "vs_vidcom2": None,
        "low_motion_flops_saved": 0.5,
        "dp_real": 0.005,
    }
    assert f1(np.array([0.1]), np.array([0.2])) == pytest.approx(1.0)


def test_stock_vllm_is_sent_as_many_rows_as_ours_has() -> None:
    layout = load_layout(TINY)
    assert layout.label is not None
    marks = len(layout.frame_open) + len(layout.frame_close)
    assert marks == 2  # of an image, which vLLM writes
    prompt = Prompt.of(layout, 3, [[1, 2]], 5)
    assert prompt.labels == [[*layout.label.ids(number)] for number in (1, 2, 3)]
    bare = Prompt.of(labelled(layout, 0), 3, [[1, 2]], 5)
    assert [len(label) + marks for label in bare.labels] == [labelled(layout, 0).label.tokens] * 3


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Camera]:
    """A film by the model that is timed, in windows of eight frames."""
    folder = small_checkpoint(TINY, tmp_path_factory.mktemp("peers") / "small")
    side = Side(folder, 3, labelled(load_layout(folder), 0))
    assert side.tower.grid.tokens == 36
    yield Camera(FILM, side, CUTS["8"], {})
    side.engine.close()


@pytest.mark.slow
def test_every_method_answers_every_window_behind_the_first(camera: Camera) -> None:
    spent = {method: camera.answers(method, None) for method in METHODS if method not in ("evs", "vidcom2")}
    assert {len(one.p) for one in spent.values()} == {3}
    assert all(len(p) == 5 for p in spent["ours"].p)
    assert spent["resend"].tokens == spent["append"].tokens == [36 * 8] * 3
    assert spent["ours"].tokens[0] < 36 * 8
    assert max(spent["append"].flops) < min(spent["resend"].flops)


def test_what_stock_vllm_found_in_its_cache_is_not_counted(camera: Camera) -> None:
    def window(cached: int) -> dict[str, object]:
        return {"seconds": 1.0, "rows": [400] * 2, "cached": [cached, 384], "p": [0.5]}

    cold, warm = camera.stock([window(0)] * 2), camera.stock([window(200)] * 2)
    assert warm.flops[0] < cold.flops[0]
    assert (cold.tokens, cold.seconds) == ([36 * 8], [1.0])


@pytest.mark.long
def test_a_run_that_was_stopped_measures_no_camera_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without stock vLLM, which the example's test runs."""
    monkeypatch.setattr(peers_engine, "vllm_masks", dict)
    tables = []
    for _ in range(2):
        bench = peers_engine.Bench(tmp_path, (1, 1), (1, 1), fresh=False)
        tables.append(bench.tables("films, 8 frames", [FILM], CUTS["8"]))
        bench.close()
        monkeypatch.setattr(peers_engine, "Camera", lambda *_: pytest.fail("a camera was measured again"))
    assert tables[0] == tables[1]
    assert tables[0]["equal"]["resend"]["dp"] == 0 < tables[0]["equal"]["resend"]["time_over_ours"]
    assert tables[0]["default"]["frames"]["tokens"] == 16 * 4


def test_the_page_shows_two_plots() -> None:
    rows = {name: {"time_over_ours": 2.0, "dp": 0.01} for name in ("vllm", "append", "ours")}
    kinds = {"rendered, 8 frames": {"equal": rows}, "real, 80 frames": {"equal": rows}}
    record = Record("make", "a processor", "abc", "2026-11-23", 0.0, {"vs_resend": 2.0, "tables": kinds})
    drawn = plots("peers_engine", record)
    assert [name for name in drawn if f"]({name})" in page("peers_engine", record)] == [
        "peers_engine-time.svg",
        "peers_engine-dp.svg",
    ]
    assert all("append" in text and "real, 80 frames" in text for text in drawn.values())
    assert plots("recall", record) == {}
