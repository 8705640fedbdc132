"""A stage of training that continues from committed weights.

It is resumable, and installs a running mean of the weights that it trains.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from watchbench import model as vlm, training
from watchbench.costs import Cost, counted
from watchbench.questions import answers
from watchbench.scenes import Truth
from watchbench.training import CPU, truth_on

TOLD_WEIGHT = 4.0  # weight of a question that no single frame answers, relative to others
LABELS = 480  # frame numbers start again at a key window, every 30 strides of up to 16 frames


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Hyperparameters of a stage.

    Attributes:
        seed: Another seed gives other clips.
        steps: Steps of the schedule; the learning rate falls until its end.
        rate_text: Learning rate of the language model.
        rate_heads: Learning rate of the heads that only training uses.
        drop: The share of steps with pruned frames.
        frame: Weight of the loss on the facts that the token at the end of a frame must encode.
        prefixes: Prefixes of a clip after which questions are asked.
        questions: Questions after each prefix.
        mean: Decay of the running mean of the weights, which is what is installed.
        threads: Threads for learning.
        muon: Muon for matrices; else AdamW, whose step takes a fifth of the time on a CPU without fast
            bfloat16.
        footage: Folder of real clips that are mixed in.
    """

    seed: int = 51
    steps: int = 2000
    rate_text: float = 5e-4
    rate_heads: float = 1.5e-3
    drop: float = 0.65
    frame: float = 0.7
    prefixes: int = 4
    questions: int = 6
    mean: float = 0.995
    threads: int = 1
    footage: str | None = None
    muon: bool = True


@dataclass(frozen=True, slots=True)
class Lesson:
    """The data that one step learns from.

    Attributes:
        tokens: [B, T, 16, hidden]; [B, T / 2, 16, hidden] if a set of 16 tokens shows two frames.
        keep: The masks, bool, of the shape of `tokens` without hidden; None: nothing is dropped.
        truth: The truth of all T frames.
        parts: As in :func:`watchbench.model.answer`.
        first: The first frame's label.
        asked: The questions.
        which: The index of each question that has one.
        together: Frames that a set of 16 tokens shows.
        told: Answers to the questions after those with an index, bool [B, n].
    """

    tokens: Tensor
    keep: Tensor | None
    truth: Truth
    parts: tuple[tuple[int, int], ...]
    first: int
    asked: list[vlm.Asked]
    which: Tensor
    together: int = 1
    told: Tensor | None = None

    def on(self, device: torch.device) -> Lesson:
        """The lesson on a device."""
        keep = None if self.keep is None else self.keep.to(device)
        told = None if self.told is None else self.told.to(device)
        truth, which = truth_on(self.truth, device), self.which.to(device)
        return replace(self, tokens=self.tokens.to(device), keep=keep, truth=truth, which=which, told=told)

    @property
    def name(self) -> str:
        """The name of lessons of this kind or length on the progress bar."""
        if self.told is not None:
            return "far"
        return "history" if self.parts else str(self.tokens.shape[1] * self.together)


P = TypeVar("P", bound=StagePlan)


class Stage(ABC, Generic[P]):
    """Trains a model, and continues from the last checkpoint in ``folder``."""

    key: str
    """The entry of the model card that holds the plan."""

    def __init__(self, plan: P, folder: Path, initial: Path, device: torch.device = CPU) -> None:
        torch.set_num_threads(plan.threads)
        self.device = device
        torch.manual_seed(plan.seed)
        training.use_footage(Path(plan.footage) if plan.footage else None)
        self.plan, self.folder, self.step = plan, folder, 0
        self.model = self._begun(initial).to(device)
        self.heads = self._heads().to(device)
        self.model.model.language_model.embed_tokens.weight.is_table = True
        groups = self._groups()
        self.opts = training.optimisers(groups, plan.muon)
        self.learning = [parameter for parameters, _ in groups for parameter in parameters]
        self.mean = copy.deepcopy(self._learnt(self.model).state_dict())
        self._resume()

    def _begun(self, initial: Path) -> Any:
        """Return the model at the begin of training."""
        old = vlm.load(initial)
        model = vlm.build(vlm.shape_of(old), vlm.form_of(old))
        model.load_state_dict(vlm.inherited(initial))
        return model

    def _heads(self) -> training.Heads:
        """The heads that read the model in training only."""
        return training.Heads(vlm.shape_of(self.model))

    @staticmethod
    @abstractmethod
    def _learnt(model: Any) -> nn.Module:
        """The part of a model that learns."""

    @abstractmethod
    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """The groups of parameters that learn, with the learning rate of each; called once."""

    @abstractmethod
    def _loss(self, step: int) -> tuple[Tensor, float, str]:
        """The loss of a step, and the number that the progress bar shows for it, with its name."""

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["plan"] != asdict(self.plan):
            raise ValueError(f"{path} belongs to another plan: {state['plan']}; choose another folder")
        self.step, self.mean = state["step"], state["mean"]
        self._learnt(self.model).load_state_dict(state["learnt"])
        self.heads.load_state_dict(state["heads"])
        for opt, saved in zip(self.opts, state["opts"], strict=True):
            opt.load_state_dict(saved)

    def save(self) -> None:
        """Write everything that resuming needs, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "learnt": self._learnt(self.model).state_dict(),
            "mean": self.mean,
            "heads": self.heads.state_dict(),
            "opts": [opt.state_dict() for opt in self.opts],
            "plan": asdict(self.plan),
        }
        fresh = self.folder / "state.new"
        torch.save(state, fresh)
        fresh.replace(self.folder / "state.pt")

    def run(self, stop: Callable[[], bool] = lambda: False, seconds: float | None = None) -> bool:
        """Run every remaining step, until ``stop``; return whether all are done.

        With ``seconds`` it ends after that time, however many steps are done, and the learning rate falls
        until then.
        """
        began = time.monotonic()
        bar = tqdm(
            iter(range(self.step, self.plan.steps)),
            initial=self.step,
            total=self.plan.steps if seconds is None else None,
            desc="windows",
            mininterval=10,
        )
        running: dict[str, float] = {}
        for step in bar:
            if stop():
                break
            done = step / self.plan.steps if seconds is None else (time.monotonic() - began) / seconds
            if done >= 1:
                break
            loss, figure, name = self._loss(step)
            training.update(loss, self.opts, self.learning, done)
            self._average()
            self.step = step + 1
            running[name] = figure if name not in running else 0.95 * running[name] + 0.05 * figure
            if self.step % 10 == 0:
                bar.set_postfix({key: f"{running[key]:.3f}" for key in sorted(running)})
            if self.step % 20 == 0:
                self.save()
        self.save()
        return self.step == self.plan.steps

    def _average(self) -> None:
        # Without this, the mean of the first steps would be mostly the initial weights.
        decay = min(self.plan.mean, (1 + self.step) / (10 + self.step))
        for name, value in self._learnt(self.model).state_dict().items():
            self.mean[name].lerp_(value, 1 - decay)

    def cost(self, step: int) -> Cost:
        """The cost of a step, forward and backward."""
        cost = counted(lambda: self._loss(step)[0])
        self.model.zero_grad()
        return cost

    @abstractmethod
    def estimate(self) -> dict[str, float]:
        """Return the cost of the plan: steps, FLOPs of all steps, operations of a step, and the number of
        drawn clips. Draws the data of one step of each kind.
        """

    def averaged(self) -> Any:
        """The model with the running mean of the weights."""
        model = copy.deepcopy(self.model)
        self._learnt(model).load_state_dict(self.mean)
        return model

    def card(self, initial: dict[str, object]) -> dict[str, object]:
        """Return the model card of the trained weights; ``initial``: the card of the weights that training
        began with.
        """
        plan = asdict(self.plan) | {"footage": self.plan.footage is not None}
        # Each further run of the same stage gets its own entry: long, long_2, long_3.
        keys = (self.key, *(f"{self.key}_{number}" for number in range(2, len(initial) + 3)))
        key = next(key for key in keys if key not in initial)
        return initial | {key: {"plan": plan, "steps": self.step}}

    def write(self, folder: Path, initial: dict[str, object]) -> None:
        """Write the running mean of the weights as a checkpoint; ``initial`` as in :meth:`card`."""
        vlm.save(self.averaged(), folder, self.card(initial))

    def install(self, name: str, initial: dict[str, object]) -> Path:
        """Install the running mean of the weights as committed weights ``name``; ``initial`` as in
        :meth:`card`."""
        return vlm.replace_weights(self.averaged(), name, self.card(initial))


class QuestionStage(Stage[P]):
    """A stage that learns from the answers to questions about windows."""

    @abstractmethod
    def _lesson(self, step: int) -> tuple[Lesson, Tensor | float]:
        """The lesson of a step, and what is added to the loss of its questions."""

    def _loss(self, step: int) -> tuple[Tensor, float, str]:
        lesson, more = self._lesson(step)
        with self.device:
            loss, asked = self._asked(lesson)
        return loss + more, asked, lesson.name

    def _asked(self, lesson: Lesson) -> tuple[Tensor, float]:
        lesson = lesson.on(self.device)
        yes, known = training.as_shown(answers(lesson.truth), lesson.together)
        after = torch.tensor([question.after for question in lesson.asked[: len(lesson.which)]])
        target, sure = yes[:, after, lesson.which], known[:, after, lesson.which].float()
        if lesson.told is not None:
            target = torch.cat([target, lesson.told], 1)
            sure = torch.cat([sure, torch.full(lesson.told.shape, TOLD_WEIGHT)], 1)
        layers = self.heads.layers
        reading = vlm.answer(
            self.model, lesson.tokens, lesson.asked, lesson.keep, lesson.first, layers, lesson.parts
        )
        words = vlm.words_of(self.model)
        said = torch.where(target, words.yes, words.no)
        two = functional.cross_entropy(
            reading.answers.flatten(0, 1), (~target).flatten().long(), reduction="none"
        )
        full = functional.cross_entropy(reading.words.flatten(0, 1), said.flatten(), reduction="none")
        weight = sure.flatten() / sure.sum().clamp(min=1)
        loss = (two * weight).sum()
        asked = loss.item()
        loss = loss + 0.1 * (full * weight).sum()
        if lesson.parts:  # a snippet's frame cannot know what came before it
            facts = self.heads.facts_loss(reading.frames[0], lesson.truth)
            return loss + self.plan.frame * facts, asked
        frames = self.heads.frame_loss(reading.frames, lesson.truth, lesson.together)
        return loss + self.plan.frame * frames, asked


def asked_of(plan: StagePlan, length: int, step: int) -> tuple[list[vlm.Asked], Tensor]:
    """The questions of a step about clips of ``length`` frames; they depend only on the plan and the step."""
    g = torch.Generator().manual_seed(plan.seed * 10**7 + step)
    return training.choose(training.Plan(prefixes=plan.prefixes, questions=plan.questions), length, g)
