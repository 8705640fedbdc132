"""The worker's store, without vLLM: rotation there and back, rows behind a window, whole or no commits."""

from __future__ import annotations

import pytest
import torch

from lookout.models.engines.vllm import store as store_module
from lookout.models.engines.vllm.store import Captured, SavedKV, WindowInputs, WindowStore, turned


def window(key: str = "w", **changes: object) -> WindowInputs:
    rows = 6
    values: dict[str, object] = {
        "key": key,
        "stream": "cam/0",
        "digest": "plan-2",
        "parent": None,
        "positions": torch.tensor([[0, 1, 2, 5, 6, 9]]),
        "question_position": 11,
        "token_ids": torch.zeros(rows, dtype=torch.int64),
        "visual_rows": torch.tensor([2, 3, 4]),
        "embeddings": torch.arange(6.0).view(3, 2),
        "deepstack": None,
        "source": torch.full((rows,), -1),
        "computed": torch.arange(rows),
        "load": 0,
        "runs": (),
    }
    return WindowInputs(**{**values, **changes})  # type: ignore[arg-type]


def layer(rows: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((rows, 1, 4), value), torch.full((rows, 1, 4), -value)


@pytest.mark.parametrize("scale", [1.0, 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rotation_is_undone_by_the_same_angles(scale: float, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    keys = torch.randn(50, 2, 8, generator=draw).to(dtype)
    angle = torch.rand(50, 4, generator=draw) * 1000
    # Cosines as a half-precision table has them, and YaRN's factor on both.
    angles = ((angle.cos() * scale).to(dtype).float(), (angle.sin() * scale).to(dtype).float())
    back = turned(turned(keys, angles), angles, back=True)
    assert float((back - keys).abs().max()) < (1e-5 if dtype == torch.float32 else 0.06)
    assert float((turned(keys, angles).norm() / keys.norm() / scale - 1).abs()) < 0.01


def test_positions_go_on_behind_the_window() -> None:
    assert window().at(4, 9).tolist() == [[6, 9, 11, 12, 13]]
    assert window().at(7, 9).tolist() == [[12, 13]]
    assert window().at(0, 2).tolist() == [[0, 1]]


def test_visual_rows_of_any_part_of_a_window() -> None:
    put, take = window().visual(torch.arange(3, 6))
    assert (put.tolist(), take.tolist()) == ([0, 1], [1, 2])
    put, take = window().visual(torch.arange(0, 2))
    assert (put.tolist(), take.tolist()) == ([], [])
    empty = window(visual_rows=torch.zeros(0, dtype=torch.int64))
    assert len(empty.visual(torch.arange(6))[0]) == 0


def test_a_commit_joins_reused_and_computed_rows() -> None:
    store = WindowStore(streams={"cam/0": SavedKV(4, "plan-1", {"l0": layer(4, 1.0)})})
    store.streams["cam/0"].layers["l0"][0][3] = 7.0
    changes = {"parent": "plan-1", "source": torch.tensor([0, 2, 3, -1, -1, -1])}
    store.windows["w"] = window(**changes, computed=torch.tensor([1, 3, 4, 5]))
    captured = store.captured.setdefault("w", Captured())
    captured.put("l0", 4, torch.tensor([0, 1]), *layer(2, 5.0))
    captured.put("l0", 4, torch.tensor([2, 3]), *layer(2, 6.0))
    assert store.commit("w", "cam/0") is None
    keys, values = store.streams["cam/0"].layers["l0"]
    assert keys[:, 0, 0].tolist() == [1, 5, 7, 5, 6, 6]
    assert values[:, 0, 0].tolist() == [-1, -5, -1, -5, -6, -6]
    assert store.streams["cam/0"].bytes == 2 * 6 * 4 * 4
    assert not store.captured


def test_a_window_that_was_not_computed_to_the_end_is_not_kept() -> None:
    store = WindowStore(windows={"w": window()})
    assert store.commit("w", "cam/0") == "it computed no rows"
    store.captured["w"] = Captured()
    store.captured["w"].put("l0", 6, torch.tensor([0, 1]), *layer(2, 5.0))
    assert store.commit("w", "cam/0") == "some of its rows were never computed"
    assert store.streams == {}


@pytest.mark.parametrize("caught", [(), ("l0",)])
def test_a_window_of_which_layers_were_not_caught_is_not_kept(caught: tuple[str, ...]) -> None:
    """Its stream has KV, so that nothing but the missing rows tells."""
    changes = {"parent": "plan-1", "source": torch.tensor([0, 2, 3, -1, -1, -1])}
    store = WindowStore(windows={"w": window(**changes, computed=torch.tensor([1, 3, 4, 5]))})
    store.streams["cam/0"] = SavedKV(4, "plan-1", {"l0": layer(4, 1.0), "l1": layer(4, 2.0)})
    captured = store.captured.setdefault("w", Captured())
    for name in caught:
        captured.put(name, 4, torch.arange(4), *layer(4, 5.0))
    assert store.commit("w", "cam/0") == "some of its rows were never computed"


def test_a_key_window_needs_every_layer_of_the_model() -> None:
    store = WindowStore(layers=("l0", "l1"), windows={"w": window()})
    captured = store.captured.setdefault("w", Captured())
    captured.put("l0", 6, torch.arange(6), *layer(6, 5.0))
    assert store.commit("w", "cam/0") == "some of its rows were never computed"
    store.captured["w"] = captured = Captured()
    for name in store.layers:
        captured.put(name, 6, torch.arange(6), *layer(6, 5.0))
    assert store.commit("w", "cam/0") is None


def test_failures_are_told_once() -> None:
    store = WindowStore()
    store.fail("w", "first cause")
    store.fail("v", "another")
    assert store.failures(["w", "u"]) == {"w": "first cause"}
    assert store.failures(["w"]) == {}
    assert store.failed == {"v": "another"}


def test_failures_are_remembered_until_released() -> None:
    store = WindowStore(windows={"w": window(parent="plan-1")})
    assert "its KV is no longer in the worker" in str(store.commit("w", "cam/0"))
    store.fail("w", "first cause")
    store.fail("w", "second cause")
    assert store.commit("w", "cam/0") == "first cause"
    store.release(["w"])
    assert (store.windows, store.captured, store.failed) == ({}, {}, {})
    store.drop(["cam/0", "never/0"])


def test_kv_of_another_plan_is_not_continued() -> None:
    store = WindowStore(windows={"w": window(parent="plan-1")})
    store.streams["cam/0"] = SavedKV(4, "plan-0", {"l0": layer(4, 1.0)})
    assert "the KV of plan plan-0, not of plan-1" in str(store.commit("w", "cam/0"))


def test_a_commit_that_stops_half_way_leaves_no_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers; memory ends behind the first, which the old KV has given up already."""
    changes = {"parent": "plan-1", "source": torch.tensor([0, 2, 3, -1, -1, -1])}
    store = WindowStore(windows={"w": window(**changes, computed=torch.tensor([1, 3, 4, 5]))})
    store.streams["cam/0"] = SavedKV(4, "plan-1", {"l0": layer(4, 1.0), "l1": layer(4, 2.0)})
    captured = store.captured.setdefault("w", Captured())
    for name in ("l0", "l1"):
        captured.put(name, 4, torch.arange(4), *layer(4, 5.0))
    joined, calls = store_module._joined, 0

    def short(*args: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return joined(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "_joined", short)
    assert "out of memory" in str(store.commit("w", "cam/0"))
    assert store.streams == {}
    assert store.captured == {}
