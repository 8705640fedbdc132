"""Training of the language model alone on long windows and on retrieved history.

Clips are drawn and encoded once (:mod:`watchbench.clips`), and the eye stays as it is. A step asks questions
about windows of 20, 40 or 80 frames, whole or pruned by the product's masks. In a fifth of the steps,
snippets of earlier moments stand before the window, as a memory retrieves them: each has its own frame
numbers, is blind to the others, and is seen only by the question.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from watchbench import model as vlm, real
from watchbench.clips import FRAMES, SHORT, STRIDES, Clip, ClipStore, Wanted, joined, part_of
from watchbench.costs import summed
from watchbench.questions import BY_NAME, NAMES
from watchbench.real import RealWindows
from watchbench.stage import LABELS, Lesson, QuestionStage, StagePlan, asked_of
from watchbench.training import CPU

# Questions that frames from any moment can answer; the others depend on where the window begins.
HISTORY = ("person", "lying", "vehicle", "many", "seen_person", "seen_vehicle", "order", "count", "people")
GROUPS_KNOWN = 16  # groups of short scenes drawn before the first step; every second step draws one more
CHOSEN = Wanted(
    ("many", None, "left", "many", "count"),
    ("lying", "many", "left", "count", "many", None, None, None),
)


@dataclass(frozen=True, slots=True)
class LongPlan(StagePlan):
    """Hyperparameters of the stage.

    Attributes:
        rows: Frames of a step: 160 are 2 windows of 80, 4 of 40 or 8 of 20.
        history: The share of steps with retrieved snippets before the window.
        clips: Clips drawn in all; every third step draws one beyond ``stock``.
        stock: Clips drawn before the first step.
        short: The share of steps without history that learn from eight scenes of 20 frames.
        groups: Groups of eight such scenes drawn in all.
        chosen: Whether clips are chosen (:data:`CHOSEN`): crowds, objects left, and other rare things.
        real: The share of steps about real windows, if there are any.
    """

    rows: int = 160
    history: float = 0.2
    clips: int = 700
    stock: int = 16
    short: float = 0.0
    groups: int = 300
    chosen: bool = False
    real: float = 0.25


class Clips(Protocol):
    """The interface of :class:`watchbench.clips.ClipStore`: clips by number."""

    @property
    def together(self) -> int:
        """Number of frames that the eye encodes as one."""

    def clip(self, number: int) -> Clip:
        """A clip of one scene."""

    def shorts(self, number: int) -> Clip:
        """A clip of eight scenes of 20 frames."""


@dataclass(frozen=True, slots=True)
class FirstClips:
    """Gives the first clip of a store for every number: enough to count the cost of a step."""

    store: Clips

    @property
    def together(self) -> int:
        """See :class:`Clips`."""
        return self.store.together

    def clip(self, number: int) -> Clip:
        """See :class:`Clips`."""
        return self.store.clip(0)

    def shorts(self, number: int) -> Clip:
        """See :class:`Clips`."""
        return self.store.shorts(0)


class Lessons:
    """The lessons of a plan; each depends only on the plan and its step."""

    def __init__(self, plan: LongPlan, store: Clips) -> None:
        self.plan, self.store = plan, store

    def kind(self, step: int) -> str:
        """What a step teaches: "history", "short" (scenes of 20 frames), or the number of frames of its
        windows."""
        return self._drawn(random.Random(f"{self.plan.seed}-{step}"))

    def of_first_clip(self) -> Lessons:
        """Lessons of the same sizes, all cut from the first clip, to count what they cost."""
        return Lessons(self.plan, FirstClips(self.store))

    def lesson(self, step: int) -> Lesson:
        """Return the lesson of a step; draws its newest clip if it is not on disk."""
        dice = random.Random(f"{self.plan.seed}-{step}")
        kind, stock = self._drawn(dice), self._stock(step)
        if kind == "history":
            return self._history(step, stock, dice)
        return self._shorts(step, dice) if kind == "short" else self._window(step, stock, int(kind), dice)

    def clips(self, steps: int) -> tuple[int, int]:
        """Return the most clips, and the most groups of eight short scenes, that the first ``steps`` steps
        draw.
        """
        plan = self.plan
        groups = min(plan.groups, GROUPS_KNOWN + steps // 2) if plan.short else 0
        return self._stock(steps), groups

    def _stock(self, step: int) -> int:
        return min(self.plan.clips, self.plan.stock + step // 3)

    def _drawn(self, dice: random.Random) -> str:
        if dice.random() < self.plan.history:
            return "history"
        if self.plan.short and dice.random() < self.plan.short:
            return "short"
        return dice.choices(("20", "40", "80"), (0.3, 0.3, 0.4))[0]

    def _shorts(self, step: int, dice: random.Random) -> Lesson:
        clip = self.store.shorts(dice.randrange(self.clips(step)[1]))
        kind = self._kind(dice, SHORT)
        tokens, keep = (clip.dense, None) if kind is None else clip.pruned[kind]
        together = self.store.together
        size = (len(clip.truth.times), SHORT // together)
        asked, which = asked_of(self.plan, SHORT // together, step)
        keep = None if keep is None else keep.view(*size, -1)
        first = dice.randrange(1, LABELS)
        shown = tokens.float().view(*size, *tokens.shape[1:])
        return Lesson(shown, keep, clip.truth, (), first, asked, which, together)

    def _window(self, step: int, stock: int, length: int, dice: random.Random) -> Lesson:
        kind, together = self._kind(dice, length), self.store.together
        # Pruned windows begin with a block, whose first frame is whole.
        grain = STRIDES[kind] if kind is not None else together
        clips, places = [], []
        for number in dice.sample(range(stock), self.plan.rows // length):
            begin = grain * dice.randrange((FRAMES - length) // grain + 1)
            clips.append(self.store.clip(number))
            places.append(torch.arange(begin, begin + length))
        asked, which = asked_of(self.plan, length // together, step)
        return _lesson(clips, places, kind, (), dice.randrange(1, LABELS), asked, which, together)

    def _history(self, step: int, stock: int, dice: random.Random) -> Lesson:
        window, snippet, count = 20, dice.choice((2, 4)), dice.randrange(2, 7)
        kind = self._kind(dice, window)
        grain = STRIDES[kind] if kind is not None else 1
        clips, places = [], []
        for number in dice.sample(range(stock), max(2, self.plan.rows // (window + count * snippet) - 1)):
            begin = grain * dice.randrange(FRAMES // 2 // grain, (FRAMES - window) // grain + 1)
            starts = sorted(dice.sample(range(0, begin - snippet + 1, 4), count))
            past = [torch.arange(start, start + snippet) for start in starts]
            clips.append(self.store.clip(number))
            places.append(torch.cat([*past, torch.arange(begin, begin + window)]))
        parts = tuple((snippet, dice.randrange(1, LABELS)) for _ in range(count))
        names = dice.choices(HISTORY, k=2 * self.plan.questions)
        end = len(places[0]) - 1
        asked = [vlm.Asked(dice.choice(BY_NAME[name].wordings), end) for name in names]
        which = torch.tensor([NAMES.index(name) for name in names])
        parts += ((window, dice.randrange(1, LABELS)),)
        return _lesson(clips, places, kind, parts, 1, asked, which)

    def _kind(self, dice: random.Random, length: int) -> int | None:
        """Draw which of :data:`STRIDES` prunes; None: nothing is dropped."""
        if dice.random() >= self.plan.drop:
            return None
        return dice.choices((0, 1), (0.8, 0.2) if length == 20 else (0.35, 0.65))[0]


def _lesson(  # noqa: PLR0917
    clips: list[Clip],
    places: list[Tensor],
    kind: int | None,
    parts: tuple[tuple[int, int], ...],
    first: int,
    asked: list[vlm.Asked],
    which: Tensor,
    together: int = 1,
) -> Lesson:
    shown = [clip.dense if kind is None else clip.pruned[kind][0] for clip in clips]
    sets = [at[::together] // together for at in places]
    tokens = torch.stack([part[at] for part, at in zip(shown, sets, strict=True)]).float()
    keep = None
    if kind is not None:
        keep = torch.stack([clip.pruned[kind][1][at] for clip, at in zip(clips, sets, strict=True)])
    truth = joined([part_of(clip.truth, at) for clip, at in zip(clips, places, strict=True)])
    return Lesson(tokens, keep, truth, parts, first, asked, which, together)


class LongTrainer(QuestionStage[LongPlan]):
    """The stage in which only the language model learns; tower and projector stay as they are."""

    key = "long"

    def __init__(
        self,
        plan: LongPlan,
        folder: Path,
        initial: Path,
        device: torch.device = CPU,
        windows: RealWindows | None = None,
    ) -> None:
        """``windows``: real ones, which are mixed in."""
        if not vlm.form_in(initial).labels:  # no frame numbers: snippets would share one grid
            plan = replace(plan, history=0.0)
        super().__init__(plan, folder, initial, device)
        self.windows = windows
        self.store = self._clips(folder.parent, CHOSEN if plan.chosen else Wanted())
        self.lessons = self._lessons()

    def _lessons(self) -> Lessons:
        return Lessons(self.plan, self.store)

    def _clips(self, folder: Path, wanted: Wanted) -> ClipStore:
        """Return the store that lessons are cut from, which keeps its clips in its own folder."""
        return ClipStore(self.model, folder / "clips", self.plan.seed, wanted)

    @staticmethod
    def _learnt(model: Any) -> nn.Module:
        return model.model.language_model  # type: ignore[no-any-return]

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        for part in vlm.eye(self.model):
            part.requires_grad_(False)
        read = [*self.heads.facts.parameters(), *self.heads.so_far.parameters()]
        return [
            (read, self.plan.rate_heads),
            (list(self._learnt(self.model).parameters()), self.plan.rate_text),
        ]

    def _lesson(self, step: int) -> tuple[Lesson, Tensor | float]:
        dice = random.Random(f"real-{self.plan.seed}-{step}")
        if self.windows is not None and dice.random() < self.plan.real:
            masked = dice.random() < self.plan.drop
            return real.lesson(self.model, self.windows.group(dice, masked), masked, self.plan, dice)[0], 0.0
        return self.lessons.lesson(step), 0.0

    def estimate(self) -> dict[str, float]:
        """See :meth:`Stage.estimate`; draws one clip and one group of short scenes."""
        lessons, plan = self.lessons, self.plan
        kinds = [lessons.kind(step) for step in range(plan.steps)]
        self.lessons = lessons.of_first_clip()
        try:
            costs = {kind: self.cost(kinds.index(kind)) for kind in sorted(set(kinds))}
        finally:
            self.lessons = lessons
        clips, groups = lessons.clips(plan.steps)
        parts = [(kinds.count(kind), cost) for kind, cost in costs.items()]
        return summed(plan.steps, parts) | {"clips": clips, "groups": groups}
