"""The campaign for a GPU: every step at tiny shape on the CPU, what is resumed, what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu import __main__ as campaign, attention, needs, on_device, oracles
from tests.gpu.scale import scale_of


@pytest.mark.long
@pytest.mark.parametrize("step", [step.name for step in campaign.STEPS])
def test_a_step_runs_at_tiny_shape(step: str) -> None:
    figures = campaign.perform(step, "tiny", "cpu")
    assert json.loads(json.dumps(figures)) == figures
    numbers = list(leaves(figures))
    assert len(numbers) >= 2
    assert all(np.isfinite(number) and number >= 0 for number in numbers)


def leaves(value: Any) -> Any:
    """All numbers of nested figures."""
    for inner in value.values():
        if isinstance(inner, dict):
            yield from leaves(inner)
        elif isinstance(inner, int | float):
            yield inner


def test_a_device_that_computes_something_else_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.0, 0.01, 0.01, 0.0, np.nan, np.nan, 0.0, 0.0, 0.0])

    def check(*_: object) -> list[np.ndarray]:
        return [np.full(2, next(values))]

    monkeypatch.setattr(oracles, "CHECKS", {"other": check, "nothing": check, "same": check})
    figures = oracles.run(scale_of("tiny", "cpu"))
    assert set(figures["wrong"]) == {"internvl: other", "internvl: nothing"}
    assert figures["wrong"]["internvl: other"] == {"arrays": [0.01], "twice on the device": 0.0}


@pytest.mark.long
def test_attention_that_sees_other_keys_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def corner(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, scale: float) -> torch.Tensor:
        if mask is None and q.shape[1] < k.shape[1]:
            k, v = k[:, : q.shape[1]], v[:, : q.shape[1]]
        return usual(q, k, v, mask, scale)  # type: ignore[arg-type]

    usual = attention.sdpa
    assert not attention.run(scale_of("tiny", "cpu"))["wrong"]
    monkeypatch.setattr(attention, "sdpa", corner)
    wrong = attention.run(scale_of("tiny", "cpu"))["wrong"]
    assert wrong
    assert all("last rows" in name for name in wrong)


def test_lines_are_resumed_by_device_shape_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.jsonl"
    runs: list[str] = []

    def attempted(step: campaign.Step, _: object) -> dict[str, Any]:
        runs.append(step.name)
        line: dict[str, Any] = {"step": step.name, "date": "2026-01-02"}
        return line | ({"error": "cut off"} if step.name == "live" and len(runs) == 2 else {"figures": {}})

    monkeypatch.setattr(campaign, "attempt", attempted)
    arguments = ["--device", "cpu", "--shape", "tiny", "--out", str(out), "--only", "oracles", "live"]
    assert campaign.main([*arguments, "--commit", "a"]) == 1
    with out.open("a") as file:
        file.write('{"step": "live", "figu')  # the machine went away while this was written
        file.write("\n")
    assert campaign.main([*arguments, "--commit", "a"]) == 0
    assert runs == ["oracles", "live", "live"]
    assert campaign.main([*arguments, "--commit", "b"]) == 0
    assert runs == ["oracles", "live", "live", "oracles", "live"]
    line = json.loads(out.read_text().splitlines()[0])
    assert {"step", "figures", "device", "shape", "commit", "date"} <= set(line)
    capsys.readouterr()
    assert campaign.main([*arguments, "--commit", "a", "--list"]) == 0
    assert capsys.readouterr().out.count("[done]") == 2


def test_what_is_missing_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "attempt", lambda *_: pytest.fail("a step ran"))
    monkeypatch.setattr(needs, "installed", lambda package: None if package == "structlog" else "1")
    assert campaign.main(["--out", str(tmp_path / "lines"), "--commit", "a"]) == 2
    shown = capsys.readouterr()
    assert "pip download" in shown.out
    assert "structlog" in shown.err


def test_the_plugin_changes_what_engines_and_towers_load_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from lookout.models.engines import load_engine
    from lookout.models.engines.transformers import load_engine as load_transformers
    from lookout.models.families import load_tower

    for loader in (load_engine, load_transformers):
        monkeypatch.setattr(loader, "__defaults__", loader.__defaults__)
    monkeypatch.setattr(load_tower, "__kwdefaults__", dict(load_tower.__kwdefaults__ or {}))
    on_device.use("meta")
    assert load_engine.__defaults__ == load_transformers.__defaults__ == ("meta", "float32")
    assert {"device": "meta", "dtype": "float32"}.items() <= (load_tower.__kwdefaults__ or {}).items()


def test_the_large_scale_is_that_of_a_7b() -> None:
    from bench.shapes import QWEN_7B
    from bench.windows import SHAPES

    scale = scale_of("7b", "cuda")
    shape = SHAPES[scale.shape]
    assert (shape["hidden"], shape["layers"], shape["kv_heads"]) == (
        QWEN_7B.hidden,
        QWEN_7B.layers,
        QWEN_7B.kv_heads,
    )
    assert scale.dtype is torch.bfloat16
    assert scale.grid[0] * scale.grid[1] == 98
