"""What a model takes of a GPU's memory, and what is left for KV. Arithmetic: no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from bench.shapes import QWEN_7B, QWEN_32B
from lookout.models import TINY, ModelError
from lookout.models.checkpoint import count_weights
from lookout.models.device import default_dtype
from lookout.models.engines.fit import memory_text
from lookout.models.engines.shape import read_shape
from lookout.models.engines.sizing import Sizing, find_sizing, kv_budget
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.types import UnsupportedModelError
from lookout.models.flops import DecoderShape
from lookout.models.vision import FrameInput
from lookout.recordings.analysis.analyzer import Analyzer
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.streams.session import EngineHost, HostSettings

GIB = 1 << 30
SMALL, LARGE = (QWEN_7B, 8_290_000_000), (QWEN_32B, 33_450_000_000)


def divided(shape: DecoderShape, weights: int, free: int, **more: int) -> Sizing:
    return Sizing.of(shape, weights, "bfloat16", free, pass_rows=16384, window_rows=8192, **more)


@given(st.integers(30, 200), st.integers(0, 8), st.sampled_from([SMALL, LARGE]))
def test_the_parts_never_exceed_what_is_free(gib: int, table: int, model: tuple[DecoderShape, int]) -> None:
    try:
        sizing = divided(*model, gib * GIB, table_bytes=table * GIB)
    except UnsupportedModelError:
        assert gib < 85  # the larger model fits from here on, whatever the table
        return
    total = sizing.weight_bytes + sizing.work_bytes + sizing.table_bytes + sizing.kv_bytes
    assert total <= gib * GIB
    assert sizing.streams(8192) >= 1
    assert divided(*model, (gib + 1) * GIB, table_bytes=table * GIB).kv_bytes > sizing.kv_bytes


def test_a_model_that_does_not_fit_is_refused_with_its_parts() -> None:
    with pytest.raises(UnsupportedModelError, match=r"24\.0 GiB free; in bfloat16 the weights take 6\d\.\d"):
        divided(*LARGE, 24 * GIB)


def test_rows_cost_what_the_model_s_kv_has() -> None:
    shape, weights = SMALL
    assert divided(shape, weights, 80 * GIB).row_bytes == 2 * 28 * 4 * 128 * 2


def test_the_mlp_s_width_is_found_in_its_weights() -> None:
    """An MLP of another width changes a pass by three of its rows."""
    shape, weights = SMALL
    wide = DecoderShape(
        layers=28, heads=28, kv_heads=4, head_dim=128, hidden=3584, linear=shape.linear + 3 * 3584 * 1024
    )
    more = divided(wide, weights, 80 * GIB).work_bytes - divided(shape, weights, 80 * GIB).work_bytes
    assert more == 16384 * 3 * 1024 * 2


def test_weights_are_counted_without_loading_them() -> None:
    from safetensors import safe_open

    tensors = 0
    for path in TINY.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors += sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert count_weights(TINY) == tensors > 0


def budget(folder: Path, device: str, kv_bytes: int | None = None) -> int:
    return kv_budget(
        folder, device, "float32", kv_bytes=kv_bytes, pass_rows=1024, window_rows=1024, table_bytes=0
    )


def test_the_cpu_keeps_a_gibibyte_unless_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert budget(TINY, "cpu") == GIB
    assert budget(TINY, "cpu", 5) == 5


def test_a_gpu_keeps_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake GPU: only its answer about memory is asked."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 16 * GIB))
    kept = budget(TINY, "cuda")
    parts = Sizing.of(
        read_shape(TINY, "float32"),
        count_weights(TINY),
        "float32",
        8 * GIB,
        pass_rows=1024,
        window_rows=1024,
    )
    assert kept == parts.kv_bytes > 6 * GIB
    assert budget(TINY, "cuda", 5) == 5


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")]
)
def test_a_gpu_s_data_type_is_what_it_computes(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: str
) -> None:
    """A fake GPU: only its answer about its capability is asked."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert default_dtype("cuda:1") == dtype
    assert default_dtype("cpu") == "float32"
    assert PrefillSettings(mode="local", device="cuda").dtype == dtype
    assert PrefillSettings(mode="local", engine="vllm").dtype == dtype
    assert PruneEncodeSettings(mode="local", device="cuda").dtype == dtype
    assert PrefillSettings(mode="local", device="cuda", dtype="float32").dtype == "float32"


def test_doctor_says_whether_a_model_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is a fake: only its answers about memory and capability are asked."""
    assert memory_text(TINY).startswith("CPU, float32: weights 0.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 16 * GIB))
    assert memory_text(TINY).startswith("GPU, bfloat16: weights 0.0 GiB")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB // 64, 16 * GIB))
    with pytest.raises(ModelError, match="use a larger GPU"):
        memory_text(TINY)


def test_auto_and_its_data_type_are_the_same_settings() -> None:
    assert PrefillSettings(mode="local") == PrefillSettings(mode="local", dtype="float32")


def test_every_way_to_load_a_model_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake GPU under the name of the CPU: its data type is bfloat16, and it has 8 GiB free."""
    for module in ("lookout.models.device", "lookout.streams.session.host"):
        monkeypatch.setattr(f"{module}.default_dtype", lambda device: "bfloat16")
    monkeypatch.setattr("lookout.models.engines.sizing.free_bytes", lambda device: 8 * GIB)
    host = EngineHost(HostSettings(TINY))
    analyzer, sized = Analyzer(TINY), find_sizing(TINY, "cpu", "bfloat16")
    assert sized is not None
    try:
        for engine in (host.engine, analyzer.engine):
            assert isinstance(engine, TransformersEngine)
            assert engine.model.dtype is torch.bfloat16
            assert engine._budget.limit == sized.kv_bytes > 6 * GIB
        for tower in (host.tower, analyzer.tower):
            grid = tower.grid
            pixels = np.zeros((grid.temporal, grid.height, grid.width, 3), np.uint8)
            shown = FrameInput(pixels, np.ones((grid.group_rows, grid.group_cols), bool))
            assert tower.encode([shown])[0].tokens.dtype is torch.bfloat16
    finally:
        host.close()
        analyzer.close()
    assert HostSettings(TINY) == HostSettings(TINY, device="cpu", dtype="bfloat16")
    assert HostSettings(TINY, "vllm", dtype="float32").dtype == "float32"
