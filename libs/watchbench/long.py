"""Training of the language model alone on long windows and on retrieved history, from clips that are drawn
and encoded once (:mod:`watchbench.clips`).

The eye stays as it is. A step asks questions about windows of 20, 40 or 80 frames, whole or pruned by the
product's masks; in a fifth of the steps snippets of earlier moments stand before the window, as a memory
retrieves them: each with frame numbers of its own, blind to the others, seen by the question alone.
"""

from __future__ import annotations

import copy
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from watchbench import model as vlm, training
from watchbench.clips import FRAMES, SHORT, STRIDES, Clip, ClipStore, joined, part_of
from watchbench.questions import BY_NAME, NAMES, answers
from watchbench.scenes import Truth

LABELS = 480  # frame numbers count from the key window, every 30 strides of up to 16 frames
# What frames in no particular moment can answer; the other questions depend on where the window begins.
HISTORY = ("person", "lying", "vehicle", "many", "seen_person", "seen_vehicle", "order", "count", "people")


@dataclass(frozen=True, slots=True)
class LongPlan:
    """How long and how hard.

    Attributes:
        rows: Frames of a step: 2 windows of 80, 4 of 40 or 8 of 20 are 160.
        drop: The share of steps with pruned frames.
        history: The share of steps with retrieved snippets before the window.
        clips: Clips drawn in all; three steps draw one beyond ``stock``.
        stock: Clips known from the first step.
        short: The share of steps without history that learn from eight scenes of 20 frames.
        groups: Groups of eight such scenes drawn in all.
        mean: The weights that are installed are a running mean of this decay.
    """

    seed: int = 51
    steps: int = 2000
    rows: int = 160
    rate_text: float = 5e-4
    rate_heads: float = 1.5e-3
    drop: float = 0.65
    history: float = 0.2
    frame: float = 0.7
    prefixes: int = 4
    questions: int = 6
    clips: int = 700
    stock: int = 16
    short: float = 0.0
    groups: int = 300
    mean: float = 0.995
    threads: int = 1
    footage: str | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one step learns from: tokens [B, T, 16, hidden], keep bool [B, T, 16] or None, the truth of these
    frames, the parts of :func:`watchbench.model.answer`, and the questions with the index of each."""

    tokens: Tensor
    keep: Tensor | None
    truth: Truth
    parts: tuple[tuple[int, int], ...]
    first: int
    asked: list[vlm.Asked]
    which: Tensor


class Lessons:
    """Lesson i is a function of the plan and i alone."""

    def __init__(self, plan: LongPlan, store: ClipStore) -> None:
        self.plan, self.store = plan, store

    def lesson(self, step: int) -> Lesson:
        """The lesson of a step; draws its newest clip if it is not on disk."""
        dice = random.Random(f"{self.plan.seed}-{step}")
        stock = min(self.plan.clips, self.plan.stock + step // 3)
        if dice.random() < self.plan.history:
            return self._history(step, stock, dice)
        if self.plan.short and dice.random() < self.plan.short:
            return self._shorts(step, dice)
        return self._window(step, stock, dice)

    def _shorts(self, step: int, dice: random.Random) -> Lesson:
        clip = self.store.shorts(dice.randrange(min(self.plan.groups, 16 + step // 2)))
        kind = self._kind(dice, SHORT)
        tokens, keep = (clip.dense, None) if kind is None else clip.pruned[kind]
        size = (len(clip.truth.times), SHORT)
        asked, which = self._questions(SHORT, step)
        keep = None if keep is None else keep.view(*size, -1)
        first = dice.randrange(1, LABELS)
        return Lesson(
            tokens.float().view(*size, *tokens.shape[1:]), keep, clip.truth, (), first, asked, which
        )

    def _questions(self, length: int, step: int) -> tuple[list[vlm.Asked], Tensor]:
        g = torch.Generator().manual_seed(self.plan.seed * 10**7 + step)
        plan = training.Plan(prefixes=self.plan.prefixes, questions=self.plan.questions)
        return training.choose(plan, length, g)

    def _window(self, step: int, stock: int, dice: random.Random) -> Lesson:
        length = dice.choices((20, 40, 80), (0.3, 0.3, 0.4))[0]
        kind = self._kind(dice, length)
        # Pruned windows begin with a block, whose first frame is whole.
        grain = STRIDES[kind] if kind is not None else 1
        clips, places = [], []
        for number in dice.sample(range(stock), self.plan.rows // length):
            begin = grain * dice.randrange((FRAMES - length) // grain + 1)
            clips.append(self.store.clip(number))
            places.append(torch.arange(begin, begin + length))
        asked, which = self._questions(length, step)
        return _lesson(clips, places, kind, (), dice.randrange(1, LABELS), asked, which)

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
        """Which of :data:`STRIDES` prunes; None: nothing is dropped."""
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
) -> Lesson:
    shown = [clip.dense if kind is None else clip.pruned[kind][0] for clip in clips]
    tokens = torch.stack([part[at] for part, at in zip(shown, places, strict=True)]).float()
    keep = None
    if kind is not None:
        keep = torch.stack([clip.pruned[kind][1][at] for clip, at in zip(clips, places, strict=True)])
    truth = joined([part_of(clip.truth, at) for clip, at in zip(clips, places, strict=True)])
    return Lesson(tokens, keep, truth, parts, first, asked, which)


class LongTrainer:
    """Continues from the last checkpoint in ``folder``; what it makes is the running mean of the weights."""

    def __init__(self, plan: LongPlan, folder: Path, initial: Path) -> None:
        torch.set_num_threads(plan.threads)
        torch.manual_seed(plan.seed)
        training.use_footage(Path(plan.footage) if plan.footage else None)
        self.plan, self.folder, self.step = plan, folder, 0
        self.model = vlm.build(vlm.shape_of(vlm.load(initial)))
        self.model.load_state_dict(vlm.inherited(initial))
        for part in (self.model.model.vision_tower, self.model.model.multi_modal_projector):
            part.requires_grad_(False)
        self.lessons = Lessons(plan, ClipStore(self.model, folder.parent / "clips", plan.seed))
        self.heads = training.Heads(vlm.shape_of(self.model))
        self.model.model.language_model.embed_tokens.weight.is_table = True
        self.text = list(self.model.model.language_model.parameters())
        read = [*self.heads.facts.parameters(), *self.heads.so_far.parameters()]
        self.opts = training.optimisers([(read, plan.rate_heads), (self.text, plan.rate_text)])
        self.learning = [*self.text, *read]
        self.mean = copy.deepcopy(self.model.model.language_model.state_dict())
        self._resume()

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        if state["plan"] != asdict(self.plan):
            raise ValueError(f"{path} belongs to another plan: {state['plan']}; choose another folder")
        self.step, self.mean = state["step"], state["mean"]
        self.model.model.language_model.load_state_dict(state["text"])
        self.heads.load_state_dict(state["heads"])
        for opt, saved in zip(self.opts, state["opts"], strict=True):
            opt.load_state_dict(saved)

    def save(self) -> None:
        """Write everything needed to go on, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "text": self.model.model.language_model.state_dict(),
            "mean": self.mean,
            "heads": self.heads.state_dict(),
            "opts": [opt.state_dict() for opt in self.opts],
            "plan": asdict(self.plan),
        }
        fresh = self.folder / "state.new"
        torch.save(state, fresh)
        fresh.replace(self.folder / "state.pt")

    def run(self) -> None:
        """Every step that is left."""
        bar = tqdm(
            range(self.step, self.plan.steps),
            initial=self.step,
            total=self.plan.steps,
            desc="windows",
            mininterval=10,
        )
        running: dict[str, float] = {}
        for step in bar:
            lesson = self.lessons.lesson(step)
            loss, asked = self._loss(lesson)
            training.update(loss, self.opts, self.learning, step / self.plan.steps)
            self._average()
            self.step = step + 1
            name = "history" if lesson.parts else str(lesson.tokens.shape[1])
            running[name] = asked if name not in running else 0.95 * running[name] + 0.05 * asked
            if self.step % 10 == 0:
                bar.set_postfix({key: f"{running[key]:.3f}" for key in sorted(running)})
            if self.step % 50 == 0:
                self.save()
        self.save()

    def _average(self) -> None:
        # The mean of the first steps would hold mostly what training began with.
        decay = min(self.plan.mean, (1 + self.step) / (10 + self.step))
        for name, value in self.model.model.language_model.state_dict().items():
            self.mean[name].lerp_(value, 1 - decay)

    def _loss(self, lesson: Lesson) -> tuple[Tensor, float]:
        yes, known = answers(lesson.truth)
        after = torch.tensor([question.after for question in lesson.asked])
        target, sure = yes[:, after, lesson.which], known[:, after, lesson.which].float()
        layers = self.heads.layers
        reading = vlm.answer(
            self.model, lesson.tokens, lesson.asked, lesson.keep, lesson.first, layers, lesson.parts
        )
        table = vlm.vocabulary()
        words = torch.where(target, table[vlm.YES], table[vlm.NO])
        two = functional.cross_entropy(
            reading.answers.flatten(0, 1), (~target).flatten().long(), reduction="none"
        )
        full = functional.cross_entropy(reading.words.flatten(0, 1), words.flatten(), reduction="none")
        weight = sure.flatten() / sure.sum().clamp(min=1)
        loss = (two * weight).sum()
        asked = loss.item()
        loss = loss + 0.1 * (full * weight).sum()
        if lesson.parts:  # a snippet's frame cannot know what was before: it is asked only what is in it
            facts = self.heads.facts_loss(reading.frames[0], lesson.truth)
            return loss + self.plan.frame * facts, asked
        return loss + self.plan.frame * self.heads.frame_loss(reading.frames, lesson.truth), asked

    def averaged(self) -> Any:
        """The model with the running mean of the weights."""
        model = copy.deepcopy(self.model)
        model.model.language_model.load_state_dict(self.mean)
        return model

    def install(self, name: str, card: dict[str, object]) -> Path:
        """Make what was learnt the committed weights ``name``; ``card``: of the weights it began with."""
        plan = asdict(self.plan) | {"footage": self.plan.footage is not None}
        return vlm.replace_weights(self.averaged(), name, card | {"long": {"plan": plan, "steps": self.step}})
