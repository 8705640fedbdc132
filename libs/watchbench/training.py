"""Training in two stages: what is in each cell of a frame, then questions over windows. Resumable at any
time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from watchbench import drawing, scenes
from watchbench import model as vlm
from watchbench.footage import Composite, Footage
from watchbench.footage import load as load_footage
from watchbench.questions import BY_NAME, NAMES, PRODUCT, QUESTIONS, answers

STEP_S = 0.5
DENSE = 8
DENSE_WEIGHT = (2.0, 6.0, 2.0, 3.0, 2.0, 4.0, 6.0, 6.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard. ``frozen``: the share of stage 2 in which only the language model learns;
    ``sighted``: afterwards, the share of steps in which questions teach the eye too. ``drop``: the share of
    stage-2 steps that drop tokens (0 gives the dense model)."""

    seed: int = 1
    steps1: int = 2500
    steps2: int = 5000
    batch1: int = 64
    batch2: int = 8
    frames: int = 20
    rate1: float = 1.5e-3
    rate_vision: float = 5e-4
    rate_text: float = 1e-3
    frozen: float = 0.3
    sighted: float = 0.5
    dense: float = 0.5
    drop: float = 0.5
    prefixes: int = 3
    questions: int = 6
    threads: int = 1
    painters: int = 1
    footage: str | None = None


def _is_matrix(p: nn.Parameter) -> bool:
    return p.dim() == 2 and min(p.shape) > 8 and not getattr(p, "is_table", False)


def optimisers(groups: Iterable[tuple[list[nn.Parameter], float]]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers, AdamW for the rest."""
    matrices, rest = [], []
    for parameters, rate in groups:
        big = [p for p in parameters if _is_matrix(p)]
        small = [p for p in parameters if all(p is not q for q in big)]
        matrices.append({"params": big, "lr": 2 * rate, "base": 2 * rate})
        rest.append({"params": small, "lr": rate, "base": rate})
    return [
        torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, weight_decay=0.02, betas=(0.9, 0.98)),
    ]


def update(
    loss: Tensor, opts: list[torch.optim.Optimizer], parameters: list[nn.Parameter], done: float
) -> None:
    """One step at ``done`` 0..1 of a schedule that warms up, then falls as a cosine."""
    scale = min(1.0, (done + 1e-3) / 0.04) * (0.5 * (1 + math.cos(math.pi * min(1.0, done))) * 0.98 + 0.02)
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] = group["base"] * scale
        opt.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    for opt in opts:
        opt.step()


def dense_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Every class in every cell, rare ones weighing more."""
    return functional.binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.tensor(DENSE_WEIGHT))


def moving_groups(pixels: Tensor, g: torch.Generator, anchor_every: int = 4) -> Tensor:
    """A keep mask [B, T, 16] as motion pruning gives it: anchors whole, then the groups that changed since
    the anchor.

    A different threshold per clip, and now and then a group kept or dropped by accident, so that no one rule
    is learnt.
    """
    b, t = pixels.shape[:2]
    small = functional.avg_pool2d(pixels.flatten(0, 1), 4).view(b, t, 3, 28, 28)
    change = torch.zeros(b, t, vlm.TOKENS)
    active = torch.zeros(b, vlm.TOKENS)
    for k in range(t):
        if k % anchor_every == 0:
            change[:, k], active = 9.0, torch.zeros_like(active)
            continue
        delta = (small[:, k] - small[:, k - 1]).abs().amax(1, keepdim=True)
        active = torch.maximum(active, functional.max_pool2d(delta, 7).flatten(1))
        change[:, k] = active
    threshold = torch.rand(b, 1, 1, generator=g) * 0.12 + 0.02
    keep = change > threshold
    accident = torch.rand(b, 1, 1, generator=g) * 0.15
    flip = torch.rand(keep.shape, generator=g) < accident
    keep = torch.where(flip, torch.rand(keep.shape, generator=g) < 0.5, keep)
    keep[:, ::anchor_every] = True
    return keep


def drop_mask(pixels: Tensor, g: torch.Generator) -> Tensor:
    """Motion-shaped or random dropping, anchors kept."""
    b, t = pixels.shape[:2]
    if torch.rand(1, generator=g).item() < 0.75:
        return moving_groups(pixels, g)
    share = torch.rand(b, 1, 1, generator=g) * 0.8
    keep = torch.rand(b, t, vlm.TOKENS, generator=g) > share
    keep[:, ::4] = True
    return keep


def _start_painter(footage: str | None, _: int) -> None:
    torch.set_num_threads(1)
    use_footage(Path(footage) if footage else None)


class Drawn(Dataset[Any]):
    """Batch i of a stage is a function of the seed and i alone."""

    def __init__(self, plan: Plan, stage: int, begin: int) -> None:
        self.plan, self.stage, self.begin = plan, stage, begin
        self.group, self.stock = -1, list[tuple[Tensor, Tensor]]()

    def __len__(self) -> int:
        return (self.plan.steps1 if self.stage == 1 else self.plan.steps2) - self.begin

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        number, seed = self.begin + i, self.plan.seed * 10**7
        # Four batches are drawn at once: that costs hardly more than one.
        if number // 4 != self.group:
            self.group = number // 4
            drawn = single_frames(4 * self.plan.batch1, seed + (self.stage - 1) * 2 * 10**6 + self.group)
            self.stock = list(zip(*(part.chunk(4) for part in drawn), strict=True))
        cells = self.stock[number % 4]
        if self.stage == 1:
            return cells
        return cells, windows(self.plan.batch2, self.plan.frames, seed + 5 * 10**6 + number)


class Trainer:
    """Holds model, optimisers and progress; ``run`` goes on from the last checkpoint in ``folder``."""

    def __init__(self, plan: Plan, folder: Path, initial: Path | None = None) -> None:
        torch.set_num_threads(plan.threads)
        torch.manual_seed(plan.seed)
        self.plan, self.folder = plan, folder
        self.model = vlm.build()
        self.head = nn.Linear(self.model.config.text_config.hidden_size, DENSE)
        self.stage, self.step = 1, 0
        self.resume: dict[str, Any] | None = None
        path = folder / "state.pt"
        if path.is_file():
            self.resume = torch.load(path, weights_only=False)
            self.stage, self.step = self.resume["stage"], self.resume["step"]
        elif initial is not None:
            start = torch.load(initial, weights_only=False)
            own = self.model.state_dict()
            fits = {k: v for k, v in start["model"].items() if v.shape == own[k].shape}
            if start["stage"] == 1:  # the language model has learnt nothing yet
                fits = {k: v for k, v in fits.items() if "language_model" not in k and "lm_head" not in k}
            self.model.load_state_dict(fits, strict=False)
            self.head.load_state_dict(start["head"])
            self.stage = 2 if plan.steps1 == 0 else 1
        if self.resume:
            self.model.load_state_dict(self.resume["model"])
            self.head.load_state_dict(self.resume["head"])
        inner = self.model.model
        inner.language_model.embed_tokens.weight.is_table = True
        self.vision = [
            *inner.vision_tower.parameters(),
            *inner.multi_modal_projector.parameters(),
            *self.head.parameters(),
        ]
        self.text = list(inner.language_model.parameters())

    def save(self, opts: list[torch.optim.Optimizer]) -> None:
        """Write everything needed to go on, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "stage": self.stage,
            "step": self.step,
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "opts": [opt.state_dict() for opt in opts],
            "plan": asdict(self.plan),
        }
        fresh = self.folder / "state.new"
        torch.save(state, fresh)
        fresh.replace(self.folder / "state.pt")

    def _begin(self, opts: list[torch.optim.Optimizer], stage: int) -> int:
        if self.resume and self.resume["stage"] == stage:
            for opt, state in zip(opts, self.resume["opts"], strict=True):
                opt.load_state_dict(state)
            self.resume = None
            return self.step
        self.resume = None
        self.stage, self.step = stage, 0
        return 0

    def install(self, name: str) -> Path:
        """Make what was learnt the committed weights ``name``."""
        plan = asdict(self.plan) | {"footage": self.plan.footage is not None}
        return vlm.replace_weights(self.model, name, {"plan": plan, "stage": self.stage, "steps": self.step})

    def run(self) -> None:
        """Both stages, to the end."""
        if self.stage == 1:
            self._cells()
        self._questions()

    def _cells(self) -> None:
        plan, opts = self.plan, optimisers([(self.vision, self.plan.rate1)])
        begin = self._begin(opts, 1)
        mean = 0.0
        bar = tqdm(range(begin, plan.steps1), initial=begin, total=plan.steps1, desc="cells", mininterval=10)
        for step, (pixels, labels) in zip(bar, self._ahead(1, begin), strict=True):
            loss = dense_loss(self.head(vlm.see(self.model, pixels)), labels)
            update(loss, opts, self.vision, step / plan.steps1)
            self.step = step + 1
            mean = loss.item() if mean == 0 else 0.98 * mean + 0.02 * loss.item()
            if self.step % 25 == 0:
                bar.set_postfix(loss=f"{mean:.4f}")
            if self.step % 200 == 0:
                self.save(opts)
        self.save(opts)

    def _questions(self) -> None:
        plan = self.plan
        opts = optimisers([(self.vision, plan.rate_vision), (self.text, plan.rate_text)])
        begin = self._begin(opts, 2)
        mean = 0.0
        bar = tqdm(
            range(begin, plan.steps2), initial=begin, total=plan.steps2, desc="questions", mininterval=10
        )
        for step, (cells, (pixels, truth)) in zip(bar, self._ahead(2, begin), strict=True):
            done = step / plan.steps2
            g = torch.Generator().manual_seed(plan.seed * 10**7 + 5 * 10**6 + step)
            moves = done >= plan.frozen
            sighted = moves and torch.rand(1, generator=g).item() < plan.sighted
            loss, asked = self._question_loss(pixels, truth, g, sighted)
            if moves:  # the eye goes on learning from many scenes, not only from the few of this step's clips
                loss = loss + plan.dense * dense_loss(self.head(vlm.see(self.model, cells[0])), cells[1])
            update(loss, opts, self.vision + self.text, done)
            self.step = step + 1
            mean = asked if mean == 0 else 0.98 * mean + 0.02 * asked
            if self.step % 10 == 0:
                bar.set_postfix(loss=f"{mean:.4f}")
            if self.step % 100 == 0:
                self.save(opts)
        self.save(opts)

    def _ahead(self, stage: int, begin: int) -> Any:
        """Batches from ``begin`` on, drawn by other processes while this one learns; the same at every
        resumption."""
        drawn, painters = Drawn(self.plan, stage, begin), self.plan.painters
        if painters == 0:
            return DataLoader(drawn, batch_size=None)
        return DataLoader(
            drawn,
            batch_size=None,
            num_workers=painters,
            prefetch_factor=3,
            multiprocessing_context="spawn",
            worker_init_fn=partial(_start_painter, self.plan.footage),
        )

    def _question_loss(
        self, pixels: Tensor, truth: scenes.Truth, g: torch.Generator, sighted: bool
    ) -> tuple[Tensor, float]:
        plan = self.plan
        drops = torch.rand(1, generator=g).item() < plan.drop
        keep = drop_mask(pixels, g) if drops else None
        with torch.set_grad_enabled(sighted):
            tokens = vlm.see(
                self.model, pixels.flatten(0, 1), keep.flatten(0, 1) if keep is not None else None
            )
        asked, which = choose(plan, g)
        yes, known = answers(truth)
        after = torch.tensor([a.after for a in asked])
        target, sure = yes[:, after, which], known[:, after, which].float()
        first = (
            1 if torch.rand(1, generator=g).item() < 0.5 else int(torch.randint(1, 100, (1,), generator=g))
        )
        shaped = tokens.view(plan.batch2, plan.frames, vlm.TOKENS, -1)
        two, every = vlm.answer(self.model, shaped, asked, keep, first)
        table = vlm.vocabulary()
        said = torch.where(target, table[vlm.YES], table[vlm.NO])
        ce = functional.cross_entropy(two.flatten(0, 1), (~target).flatten().long(), reduction="none")
        full = functional.cross_entropy(every.flatten(0, 1), said.flatten(), reduction="none")
        weight = sure.flatten() / sure.sum().clamp(min=1)
        loss = (ce * weight).sum()
        asked_loss = loss.item()
        loss = loss + 0.1 * (full * weight).sum()
        if sighted and plan.dense:
            labels = scenes.dense_labels(truth).flatten(0, 1)
            logits = self.head(tokens)
            if keep is None:
                loss = loss + plan.dense * dense_loss(logits, labels)
            else:
                kept = keep.flatten(0, 1)
                loss = loss + plan.dense * dense_loss(logits[kept], labels[kept])
        return loss, asked_loss


def choose(plan: Plan, g: torch.Generator) -> tuple[list[Asked], Tensor]:
    """Questions after several prefixes of a clip: product questions twice as often as others; wordings
    vary."""
    t = plan.frames
    ends = [t - 1, *(1 + torch.randperm(t - 2, generator=g)[: plan.prefixes - 1]).tolist()]
    odds = torch.tensor(
        [{"left": 5.0, "lying": 5.0, "many": 3.0}.get(n, 2.0 if n in PRODUCT else 1.0) for n in NAMES]
    )
    asked, which = [], []
    for end in ends:
        for i in torch.multinomial(odds, plan.questions, generator=g).tolist():
            texts = QUESTIONS[i].wordings
            other = int(torch.randint(0, len(texts), (1,), generator=g))
            text = texts[other if torch.rand(1, generator=g).item() < 0.4 else 0]
            asked.append(Asked(text, end))
            which.append(i)
    return asked, torch.tensor(which)


Asked = vlm.Asked


_footage: dict[str, Footage | None] = {}


def use_footage(where: Path | None) -> bool:
    """Mix real backgrounds and people from this folder into what is drawn from now on; True if there are
    any."""
    _footage["now"] = load_footage(where) if where else None
    return _footage["now"] is not None


def composite(scene: scenes.Scene) -> Composite | None:
    """What is pasted into a batch, if footage is in use."""
    footage = _footage.get("now")
    return Composite(footage, scene) if footage else None


def windows(batch: int, frames: int, seed: int) -> tuple[Tensor, scenes.Truth]:
    """Clips as the fleet samples them: pixels [B, T, 3, 112, 112] in 0..1 at two frames a second, and their
    truth."""
    scene = scenes.sample(batch, frames * STEP_S, seed)
    times = torch.arange(frames) * STEP_S
    now = scenes.observe(scene, times)
    pixels = drawing.render(scene, times, vlm.SIZE, now, pasted=composite(scene))
    return pixels.permute(0, 1, 4, 2, 3).contiguous(), now.truth


def single_frames(batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """One frame of each of ``batch`` scenes with its dense labels: [B, 3, 112, 112], [B, 16, 8]."""
    g = torch.Generator().manual_seed(seed)
    scene = scenes.sample(batch, 10.0, seed)
    times = torch.rand(batch, 1, generator=g) * 10
    now = scenes.observe(scene, times)
    pixels = drawing.render(scene, times, vlm.SIZE, now, pasted=composite(scene))
    return pixels[:, 0].permute(0, 3, 1, 2).contiguous(), scenes.dense_labels(now.truth)[:, 0]


__all__ = [
    "BY_NAME",
    "Plan",
    "Trainer",
    "choose",
    "dense_loss",
    "drop_mask",
    "replace",
    "single_frames",
    "windows",
]
