"""Training of the tiny model on the device: both stages of `watchbench train`, some steps of each.

Scenes are drawn on the host as ever; losses and updates run on the device.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.gpu.scale import Scale, Stopwatch
from watchbench.training import Plan, Trainer, optimisers, single_frames, truth_on, update, windows

SEEN = 20


def run(scale: Scale) -> dict[str, Any]:
    """Steps a second and the loss at both ends, by stage; drawing apart."""
    small = scale.device.type == "cpu"
    plan = replace(
        Plan(compiled=False, painters=0, drop=1.0), **({"batch1": 8, "batch2": 2} if small else {})
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(plan, Path(folder), device=scale.device)
    return {"cells": _cells(trainer, scale), "questions": _questions(trainer, scale)}


def _cells(trainer: Trainer, scale: Scale) -> dict[str, Any]:
    plan, rates = trainer.plan, [(trainer.vision, trainer.plan.rate1)]
    pixels, labels = single_frames(plan.batch1, 1)
    pixels, labels = pixels.to(scale.device), (labels[0].to(scale.device), labels[1].to(scale.device))
    steps, losses = optimisers(rates), []
    watch = Stopwatch(scale.device)
    with scale.device:
        for step in range(scale.steps):
            loss = trainer._cell_loss(pixels, labels)
            update(loss, steps, trainer.vision, step / scale.steps)
            losses.append(loss.detach())
    return _rates(losses, watch.lap())


def _questions(trainer: Trainer, scale: Scale) -> dict[str, Any]:
    plan = trainer.plan
    steps = optimisers([(trainer.vision, plan.rate_vision), (trainer.text, plan.rate_text)])
    pixels, truth = windows(plan.batch2, plan.frames, 2)
    pixels, truth, losses = pixels.to(scale.device), truth_on(truth, scale.device), []
    watch = Stopwatch(scale.device)
    with scale.device:
        for step in range(scale.steps):
            draw = torch.Generator(scale.device).manual_seed(step)
            loss, _ = trainer._question_loss(pixels, truth, draw, sighted=True)
            update(loss, steps, trainer.vision + trainer.text, step / scale.steps)
            losses.append(loss.detach())
    return _rates(losses, watch.lap())


def _rates(losses: list[torch.Tensor], seconds: float) -> dict[str, float]:
    ends = [float(torch.stack(part).mean()) for part in (losses[:SEEN], losses[-SEEN:])]
    return {
        "steps_a_second": round(len(losses) / seconds, 3),
        "loss_first": round(ends[0], 4),
        "loss_last": round(ends[1], 4),
    }
