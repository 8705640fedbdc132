"""Whether the picture of a hit shows what was asked for, on the cameras of `bench.find`.

The truth of every frame is known.

- window: the frame to which the hit's best window attended most
- hit: the picture that the product shows, from the newest stride of the middle window

Hits without any frame that shows what was asked for are not counted, because the model's answer was wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch

from bench.memory.streams import KINDS, _cast, truth_of
from lookout.past.find.types import Hit
from tests.find_world import MINUTE_S, Spec, World
from watchbench import cameras
from watchbench.cameras import Script
from watchbench.questions import PRODUCT

STEP_US: Final = 500_000


def by_shown(world: World, found: Iterable[tuple[str, Sequence[Hit]]]) -> dict[str, Any]:
    """The share of hits whose picture is of the moment.

    Args:
        world: The cameras.
        found: The hits of each question.
    """
    inside: dict[str, list[bool]] = {"window": [], "hit": []}
    for question, hits in found:
        for hit in hits:
            spec, begin_us = world.cameras[hit.camera].spec, world.cameras[hit.camera].begin_us
            times = range(hit.begin_us + STEP_US // 2, hit.end_us, STEP_US)
            if not any(shows(spec, question, time_us - begin_us) for time_us in times):
                continue
            inside["window"].append(
                shows(spec, question, hit.verdict.evidence[0].time.ToMicroseconds() - begin_us)
            )
            inside["hit"].append(shows(spec, question, hit.picture_us - begin_us))
    return {
        name: {"shown": round(sum(own) / max(1, len(own)), 3), "hits": len(own)}
        for name, own in inside.items()
    }


def shows(spec: Spec, question: str, time_us: int) -> bool:
    """Whether a camera's frame, so long after it began to film, alone is evidence for a question."""
    minute, second = divmod(time_us / 1e6, MINUTE_S)
    draw = np.random.default_rng([spec.seed, int(minute)])
    people, vehicles = _cast(spec.events.get(int(minute), ""), draw)
    tall, horizon = KINDS[spec.kind]
    scene = cameras.scripted(Script(spec.kind, MINUTE_S, spec.seed, tall, horizon, people, vehicles))
    scene.objects["there"][:, 1:] = False
    told = truth_of(scene, torch.tensor([second], dtype=torch.float32))
    return bool(told[0, [*PRODUCT].index(question)])
