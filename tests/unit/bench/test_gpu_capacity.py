"""What the counted capacity is counted from."""

from __future__ import annotations

from bench.gpu_capacity import GPUS, held, measured, weights, window_rows
from bench.record import RESULTS, Record
from bench.shapes import QWEN_7B, QWEN_32B


def test_parameters_are_those_of_the_published_models() -> None:
    assert round(weights(QWEN_7B) / 1e9, 1) == 7.6
    assert round(weights(QWEN_32B) / 1e9, 1) == 32.8


def test_a_dense_window_has_all_its_rows() -> None:
    assert window_rows([1.0]) == 80 * (98 + 9)
    assert window_rows([0.0]) == 80 * 9 + 5 * 98


def test_streams_fill_what_weights_leave() -> None:
    rows = window_rows([0.3])
    wide, narrow = (held(GPUS[0], QWEN_7B, rows, weight_bytes=1, kv_bytes=size) for size in (2, 1))
    assert narrow // 2 == wide > 100
    assert held(GPUS[2], QWEN_32B, rows, weight_bytes=2, kv_bytes=1) == 0


def test_what_was_measured_is_told_with_its_gpu_and_its_ratio_to_whole_windows() -> None:
    record = Record.read(RESULTS / "gpu.json")
    live = record.figures["live"]
    lines = measured(record)
    assert any(record.device.partition(",")[0] in line for line in lines)
    walk = next(line for line in lines if line.startswith("| a walk"))
    times = 1e3 * 8 / live["walk"]["by_batch"]["8"]["stream_ms"] / (8 * 1e3 / live["dense_window_ms"])
    assert f"| {times:.1f} |" in walk
