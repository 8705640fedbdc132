"""What the counted capacity is counted from."""

from __future__ import annotations

from bench.gpu_capacity import GPUS, held, weights, window_rows
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
