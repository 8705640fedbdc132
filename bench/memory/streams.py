"""Rendered cameras for the memory bench: hours of one scene in which, now and then, something happens.

An hour has sixty episodes of a minute. Most are empty; in the others people pass, somebody falls, a vehicle
comes, something is left behind, or many people gather. The truth of every frame is known. Samples are taken
every two seconds, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from lookout.models.engines import WindowRequest
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.memory import born_block, prefix_of
from lookout.models.vision import FrameInput, Tower
from lookout.models.windows import EncodedFrame, Planner, Policy, StrideBlock, WindowSettings
from lookout.past.memory import BornBlock, Prefix
from watchbench import cameras, drawing, scenes
from watchbench.cameras import Actor, Script
from watchbench.questions import PRODUCT

SECONDS, STEP_S, FRAMES = 60, 2.0, 4
PER_EPISODE = round(SECONDS / STEP_S)
WINDOW = 5
KINDS = {"room": (0.5, -0.25), "carpark": (0.34, 0.05), "doorway": (0.36, -0.3)}
EVENTS = ("person", "lying", "vehicle", "left", "many")
SHARES = (0.08, 0.04, 0.05, 0.03, 0.03)


@dataclass(frozen=True)
class Spec:
    """A stream: its kind of scene, seed and hours; `cut` minutes after which the scene changes (0: never)."""

    kind: str
    seed: int
    hours: float
    cut: int = 0

    @property
    def name(self) -> str:
        cuts = f"-cut{self.cut}" if self.cut else ""
        return f"{self.kind}-{self.seed}-{self.hours:g}h{cuts}"

    @property
    def episodes(self) -> int:
        return round(self.hours * 3600 / SECONDS)


def _actor(draw: np.random.Generator, **more: float) -> Actor:
    side = int(draw.choice([-1, 1]))
    told = {"enters": draw.uniform(5, 15), "leaves": draw.uniform(35, 50), "takes": 4.0, **more}
    colour = tuple(draw.uniform(0.1, 0.9, 3).tolist())
    return Actor(
        float(draw.uniform(0.25, 0.75)),
        float(draw.uniform(0.76, 0.9)),
        from_side=side,
        to_side=int(draw.choice([-1, 1])),
        colour=colour,  # type: ignore[arg-type]
        **told,
    )


def _cast(event: str, draw: np.random.Generator) -> tuple[tuple[Actor, ...], tuple[Actor, ...]]:
    """People and vehicles of an episode."""
    if event == "person":
        return (_actor(draw),), ()
    if event == "lying":
        return (_actor(draw, falls=18.0, rises=40.0, leaves=48.0),), ()
    if event == "vehicle":
        return (), (_actor(draw, takes=3.0),)
    if event == "left":
        return (_actor(draw), _actor(draw, brings=16.0, leaves=26.0)), ()
    if event == "many":
        return tuple(_actor(draw) for _ in range(7)), ()
    return (), ()


def script(spec: Spec, episode: int) -> tuple[Script, str]:
    """What happens in an episode, and its event ("" for none)."""
    draw = np.random.default_rng([spec.seed, episode])
    event = str(draw.choice([*EVENTS, ""], p=[*SHARES, 1 - sum(SHARES)]))
    kind = spec.kind
    if spec.cut:
        names = list(KINDS)
        kind = names[(names.index(spec.kind) + episode * SECONDS // (spec.cut * 60)) % len(names)]
    tall, horizon = KINDS[kind]
    people, vehicles = _cast(event, draw)
    return Script(kind, SECONDS, spec.seed, tall, horizon, people, vehicles), event


def truth_of(scene: scenes.Scene, times: torch.Tensor) -> np.ndarray:
    """Which of the product's questions each frame alone is evidence for, bool [frames, questions]."""
    told = scenes.observe(scene, times).truth
    up = told.person_share[0] >= 0.4
    found = {
        "person": up.any(1),
        "lying": (up & told.lying[0]).any(1),
        "vehicle": (told.vehicle_share[0] >= 0.35).any(1),
        "many": up.sum(1) >= 5,
        "left": (told.object_there[0] & (told.object_share[0] >= 0.5)).any(1),
    }
    return torch.stack([found[name] for name in PRODUCT], 1).numpy()


def episodes(spec: Spec) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Per episode pixels uint8 [frames, 112, 112, 3] and truth bool [frames, questions]."""
    times = torch.arange(PER_EPISODE) * STEP_S
    backs: dict[str, torch.Tensor] = {}
    for episode in range(spec.episodes):
        told, _ = script(spec, episode)
        scene = cameras.scripted(told)
        # The same room hour after hour; noise and the clock go on.
        scene.objects["there"][:, 1:] = False
        back = backs.setdefault(told.kind, drawing.background(scene, 112))
        noisy = replace(scene, seed=spec.seed * 7919 + episode)
        drawn = drawing.render(noisy, times, 112, backdrop=back)[0]
        yield drawn.mul(255).add(0.5).byte().numpy(), truth_of(scene, times)


QUALITY = [Spec(tuple(KINDS)[i % 3], i + 1, 1.0) for i in range(4)] + [Spec("room", 20, 1.0, 10)]
"""What is reported."""
CUTS = [Spec("room", 21, 1.0, 1)]
"""Rich in cuts: the scene changes every minute. Reported apart."""
RULES = [Spec(tuple(KINDS)[i % 3], 201 + i, 1.0, 10 if i % 6 == 5 else 0) for i in range(6)]
"""On which rules of retrieval are compared. They were chosen on others, by `QUALITY` and `TUNING`."""
TUNING = [Spec(tuple(KINDS)[i % 3], 101 + i, 1.0, 10 if i == 5 else 0) for i in range(6)]
"""What settings were chosen on; used again only to make long histories, for times."""


@dataclass
class Played:
    """A stream as the engine saw it: born blocks, prefix, every frame's tokens and truth."""

    spec: Spec
    blocks: list[BornBlock]
    prefix: Prefix
    tokens: torch.Tensor
    truth: np.ndarray

    @property
    def frames(self) -> int:
        return len(self.truth)


def stride_blocks(spec: Spec, tower: Tower, tokens: torch.Tensor, first: int) -> list[StrideBlock]:
    """Dense blocks of an episode's frames."""
    keep = np.ones((tower.grid.group_rows, tower.grid.group_cols), bool)
    out = []
    for start in range(0, len(tokens) - FRAMES + 1, FRAMES):
        frames = tuple(
            EncodedFrame(round((first + start + i) * STEP_S * 1e6), i == 0, keep, tokens[start + i])
            for i in range(FRAMES)
        )
        out.append(StrideBlock(f"{spec.name}/0", (first + start) // FRAMES, frames))
    return out


def play(spec: Spec, tower: Tower, engine: TransformersEngine, folder: Path) -> Played:
    """Render, encode and run a stream window by window; kept in `folder` for the next time."""
    path = folder / f"{spec.name}.pt"
    if path.is_file():
        held = torch.load(path, weights_only=False)
        if held["version"] == 3:
            return Played(spec, held["blocks"], held["prefix"], held["tokens"], held["truth"])
    planner = Planner(engine.layout, WindowSettings(blocks=WINDOW, policy=Policy.REUSE_ALL, key_every=40))
    keep = np.ones((tower.grid.group_rows, tower.grid.group_cols), bool)
    blocks: list[StrideBlock] = []
    born: list[BornBlock] = []
    every: list[torch.Tensor] = []
    truths: list[np.ndarray] = []
    plan, prefix, left = None, None, torch.zeros(0)
    done = 0
    for pixels, truth in episodes(spec):
        told = tower.encode([FrameInput(one[None], keep) for one in pixels])
        tokens = torch.stack([one.tokens for one in told])
        every.append(tokens)
        truths.append(truth)
        left = torch.cat([left, tokens]) if len(left) else tokens
        fresh = stride_blocks(spec, tower, left, done)
        for one in fresh:
            blocks = [*blocks, one][-WINDOW:]
            plan = planner.plan(blocks, plan)
            engine.run([WindowRequest(plan, blocks)])[0].unwrap()
            prefix = prefix or prefix_of(engine, plan)
            born.append(born_block(engine, plan, one))
        left = left[len(fresh) * FRAMES :]
        done += len(fresh) * FRAMES
    engine.close_stream(f"{spec.name}/0")
    assert prefix is not None
    frames = len(born) * FRAMES
    out = Played(spec, born, prefix, torch.cat(every)[:frames], np.concatenate(truths)[:frames])
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(
        {"version": 3, "blocks": out.blocks, "prefix": out.prefix, "tokens": out.tokens, "truth": out.truth},
        part,
    )
    part.replace(path)
    return out
