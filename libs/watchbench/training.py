"""Training in two stages: what is in each cell of a frame, then questions about windows. Resumable at any
time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from watchbench import drawing, model as vlm, scenes
from watchbench.costs import counted, summed
from watchbench.footage import Composite, Footage, load as load_footage
from watchbench.questions import NAMES, PRODUCT, QUESTIONS, answers
from watchbench.shape import Shape

CPU = torch.device("cpu")
STEP_S = 0.5
DENSE, FACTS = 8, 9
DENSE_WEIGHT = (2.0, 6.0, 2.0, 3.0, 2.0, 4.0, 6.0, 6.0)
GRIDS = (vlm.CELLS, vlm.SIZE // vlm.PATCH)  # tokens, patches


Labels = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Plan:
    """Hyperparameters of both stages.

    ``frozen``: the share of stage 2 in which only the language model learns; ``sighted``: afterwards, the
    share of steps in which questions teach the eye too. ``drop``: the share of stage-2 steps that drop tokens
    (0 gives the dense model).
    """

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
    frame: float = 0.7
    drop: float = 0.5
    prefixes: int = 3
    questions: int = 6
    threads: int = 1
    painters: int = 1
    compiled: bool = True
    footage: str | None = None


def _is_matrix(p: nn.Parameter) -> bool:
    return p.dim() == 2 and min(p.shape) > 8 and not getattr(p, "is_table", False)


def optimisers(
    groups: Iterable[tuple[list[nn.Parameter], float]], muon: bool = True
) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside layers and AdamW for the rest, or AdamW for all."""
    matrices, rest = [], []
    for parameters, rate in groups:
        big = [p for p in parameters if muon and _is_matrix(p)]
        small = [p for p in parameters if all(p is not q for q in big)]
        matrices.append({"params": big, "lr": 2 * rate, "base": 2 * rate})
        rest.append({"params": small, "lr": rate, "base": rate})
    adam = torch.optim.AdamW(rest, weight_decay=0.02, betas=(0.9, 0.98))
    if not muon:
        return [adam]
    return [torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"), adam]


def update(
    loss: Tensor, opts: list[torch.optim.Optimizer], parameters: list[nn.Parameter], done: float
) -> None:
    """Take one step at ``done`` 0..1 of a schedule that warms up, then falls as a cosine."""
    scale = min(1.0, (done + 1e-3) / 0.04) * (0.5 * (1 + math.cos(math.pi * min(1.0, done))) * 0.98 + 0.02)
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] = group["base"] * scale
        opt.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    for opt in opts:
        opt.step()


class Heads(nn.Module):
    """Auxiliary heads that only training uses, so that every layer has something to learn.

    They read what is in every token's and every patch's cell. From the token that closes a frame they read,
    in an early layer, what is in that frame and, in a later one, the answers to all questions about the
    window so far.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.patches = nn.Linear(shape.text, DENSE), nn.Linear(shape.vision, DENSE)
        self.facts, self.so_far = nn.Linear(shape.text, FACTS), nn.Linear(shape.text, len(NAMES))
        self.layers = (max(1, shape.text_layers // 3), max(1, 2 * shape.text_layers // 3))

    def frame_loss(self, frames: tuple[Tensor, ...], truth: scenes.Truth, together: int = 1) -> Tensor:
        """Loss on states [B, T / together, hidden] after :attr:`layers`, without cases whose truth is
        unclear."""
        early, late = frames
        so_far = as_shown(answers(truth), together)
        return self.facts_loss(early, truth, together) + _known_loss(self.so_far(late), *so_far)

    def facts_loss(self, early: Tensor, truth: scenes.Truth, together: int = 1) -> Tensor:
        """Loss on the states [B, T / together, hidden] after the first of :attr:`layers` alone."""
        return _known_loss(self.facts(early), *as_shown(frame_facts(truth), together))

    def loss(self, tokens: Tensor, states: Tensor, labels: Labels, keep: Tensor | None = None) -> Tensor:
        """Loss on every class in every kept cell, in which rare classes weigh more; ``keep`` bool [frames,
        16]."""
        coarse, fine = self.tokens(tokens), self.patches(states)
        of_tokens, of_patches = labels
        if keep is not None:
            grid = (
                keep.view(-1, vlm.CELLS, vlm.CELLS).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)
            )
            coarse, of_tokens, fine, of_patches = coarse[keep], of_tokens[keep], fine[grid], of_patches[grid]
        weight = torch.tensor(DENSE_WEIGHT)
        bce = functional.binary_cross_entropy_with_logits
        return bce(coarse, of_tokens, pos_weight=weight) + bce(fine, of_patches, pos_weight=weight)


def as_shown(pair: tuple[Tensor, Tensor], together: int) -> tuple[Tensor, Tensor]:
    """Of (true, known) for every frame [B, T, ...], those of the last frame of each set that is shown
    ``together``: [B, T / together, ...]."""
    yes, known = pair
    return yes[:, together - 1 :: together], known[:, together - 1 :: together]


def _known_loss(logits: Tensor, yes: Tensor, known: Tensor) -> Tensor:
    loss = functional.binary_cross_entropy_with_logits(logits, yes.float(), reduction="none")
    return (loss * known).sum() / known.sum().clamp(min=1)


def frame_facts(truth: scenes.Truth) -> tuple[Tensor, Tensor]:
    """(fact, known) bool [B, T, 9] of every frame.

    The facts: at least one to five people, one and two vehicles, an object, somebody lying.
    """

    def count(share: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        number = torch.arange(1, limit + 1)
        return (share >= 0.5).sum(2, keepdim=True) >= number, (share > 0.08).sum(2, keepdim=True) >= number

    down = (truth.lying & (truth.person_share >= 0.5)).any(2, keepdim=True)
    hint = ((truth.lying | truth.falling) & (truth.person_share > 0.08)).any(2, keepdim=True)
    pairs = [
        count(truth.person_share, 5),
        count(truth.vehicle_share, 2),
        count(truth.object_share, 1),
        (down, hint),
    ]
    yes, could = (torch.cat(part, 2) for part in zip(*pairs, strict=True))
    return yes, yes == could


def cell_labels(truth: scenes.Truth) -> Labels:
    """What is in each token's and each patch's cell: float [B, T, 16, 8], [B, T, 64, 8]."""
    return scenes.dense_labels(truth, GRIDS[0]), scenes.dense_labels(truth, GRIDS[1])


def moving_groups(pixels: Tensor, g: torch.Generator, anchor_every: int = 4) -> Tensor:
    """Keep masks [B, T, 16] like those of motion pruning: anchors whole, then the groups that changed since
    the anchor.

    Each clip has another threshold, and now and then a group is kept or dropped at random, so that no single
    rule is learnt.
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
    """Keep masks that follow motion or are random; anchors are kept."""
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


def mirrored(pixels: Tensor, labels: Labels, seed: int) -> tuple[Tensor, Labels]:
    """Mirror frames and change their light: other pictures for the eye without the cost of drawing."""
    g = torch.Generator().manual_seed(seed)
    tint = 0.75 + 0.5 * torch.rand(len(pixels), 3, 1, 1, generator=g)
    grid = [(part, part.view(len(part), n, n, -1)) for part, n in zip(labels, GRIDS, strict=True)]
    coarse, fine = (cells.flip(2).reshape(part.shape) for part, cells in grid)
    return (pixels.flip(3) * tint).clamp(0, 1), (coarse, fine)


def _batches(drawn: tuple[Tensor, Labels], count: int) -> list[tuple[Tensor, Labels]]:
    pixels, (coarse, fine) = drawn
    parts = zip(pixels.chunk(count), coarse.chunk(count), fine.chunk(count), strict=True)
    return [(picture, (tokens, patches)) for picture, tokens, patches in parts]


class Drawn(Dataset[Any]):
    """The batches of a stage; each depends only on the seed and its number."""

    def __init__(self, plan: Plan, stage: int, begin: int) -> None:
        self.plan, self.stage, self.begin = plan, stage, begin
        self.group, self.stock = -1, list[tuple[Tensor, Labels]]()

    def __len__(self) -> int:
        return (self.plan.steps1 if self.stage == 1 else self.plan.steps2) - self.begin

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        number, seed = self.begin + i, self.plan.seed * 10**7
        # Drawing costs as much as learning, so four batches are drawn at once and used again mirrored.
        if number // 8 != self.group:
            self.group = number // 8
            drawn = single_frames(4 * self.plan.batch1, seed + (self.stage - 1) * 2 * 10**6 + self.group)
            self.stock = [*_batches(drawn, 4), *_batches(mirrored(*drawn, self.group), 4)]
        cells = self.stock[number % 8]
        if self.stage == 1:
            return cells
        part = (
            1 + number % 2
        )  # full windows, then twice as many of half the length: more scenes for the same rows
        clips, frames = self.plan.batch2 * part, self.plan.frames // part
        return cells, windows(clips, frames, seed + 5 * 10**6 + number)


def truth_on(truth: scenes.Truth, device: torch.device) -> scenes.Truth:
    """The truth of some clips on a device."""
    moved = {part.name: getattr(truth, part.name).to(device) for part in fields(scenes.Truth)}
    return scenes.Truth(**moved)


class Trainer:
    """Holds model, optimisers and progress; ``run`` continues from the last checkpoint in ``folder``.

    Losses and updates run on ``device``; scenes are drawn on the host.
    """

    def __init__(
        self, plan: Plan, folder: Path, initial: Path | None = None, device: torch.device = CPU
    ) -> None:
        torch.set_num_threads(plan.threads)
        torch.manual_seed(plan.seed)
        self.plan, self.folder, self.device = plan, folder, device
        self.model = vlm.build()
        self.heads = Heads(vlm.shape_of(self.model))
        self.stage, self.step = 1, 0
        self.resume: dict[str, Any] | None = None
        path = folder / "state.pt"
        if path.is_file():
            self.resume = torch.load(path, map_location=device, weights_only=True)
            self.stage, self.step = self.resume["stage"], self.resume["step"]
        elif initial is not None:
            self.model.load_state_dict(vlm.inherited(initial))
            self.stage = 2 if plan.steps1 == 0 else 1
        if self.resume:
            self.model.load_state_dict(self.resume["model"])
            self.heads.load_state_dict(self.resume["heads"])
        self.model.to(device)
        self.heads.to(device)
        inner = self.model.model
        inner.language_model.embed_tokens.weight.is_table = True
        self.vision = [
            *inner.vision_tower.parameters(),
            *inner.multi_modal_projector.parameters(),
            *self.heads.parameters(),
        ]
        self.text = list(inner.language_model.parameters())

    def save(self, opts: list[torch.optim.Optimizer]) -> None:
        """Write everything that resuming needs, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "stage": self.stage,
            "step": self.step,
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
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
        """Install the trained model as committed weights ``name``."""
        plan = asdict(self.plan) | {"footage": self.plan.footage is not None}
        return vlm.replace_weights(self.model, name, {"plan": plan, "stage": self.stage, "steps": self.step})

    def run(self) -> None:
        """Run both stages to their end."""
        if self.stage == 1:
            self._cells()
        self._questions()

    def _cells(self) -> None:
        plan, opts = self.plan, optimisers([(self.vision, self.plan.rate1)])
        begin, look = self._begin(opts, 1), self._look()
        mean = 0.0
        bar = tqdm(range(begin, plan.steps1), initial=begin, total=plan.steps1, desc="cells", mininterval=10)
        for step, (pixels, labels) in zip(bar, self._ahead(1, begin), strict=True):
            with self._there():
                loss = look(*self._cells_there(pixels, labels))
            update(loss, opts, self.vision, step / plan.steps1)
            self.step = step + 1
            mean = loss.item() if mean == 0 else 0.98 * mean + 0.02 * loss.item()
            if self.step % 25 == 0:
                bar.set_postfix(loss=f"{mean:.4f}")
            if self.step % 200 == 0:
                self.save(opts)
        self.save(opts)

    def _look(self) -> Callable[[Tensor, Labels], Tensor]:
        """Return the loss on cells; on a CPU it is compiled if the plan says so."""
        compiled = self.plan.compiled and self.device.type == "cpu"
        return torch.compile(self._cell_loss) if compiled else self._cell_loss

    def _there(self) -> AbstractContextManager[object]:
        """A context in which the tensors that a loss creates are placed on the device."""
        return nullcontext() if self.device.type == "cpu" else self.device

    def _cells_there(self, pixels: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
        coarse, fine = labels
        return pixels.to(self.device), (coarse.to(self.device), fine.to(self.device))

    def _cell_loss(self, pixels: Tensor, labels: Labels) -> Tensor:
        states = vlm.patches(self.model, pixels)
        return self.heads.loss(vlm.gather(self.model, states), states, labels)

    def _questions(self) -> None:
        plan = self.plan
        opts = optimisers([(self.vision, plan.rate_vision), (self.text, plan.rate_text)])
        begin, look = self._begin(opts, 2), self._look()
        mean = 0.0
        bar = tqdm(
            range(begin, plan.steps2), initial=begin, total=plan.steps2, desc="questions", mininterval=10
        )
        for step, (cells, (pixels, truth)) in zip(bar, self._ahead(2, begin), strict=True):
            done = step / plan.steps2
            g = torch.Generator(self.device).manual_seed(plan.seed * 10**7 + 5 * 10**6 + step)
            moves = done >= plan.frozen
            with self._there():
                sighted = moves and torch.rand(1, generator=g).item() < plan.sighted
                clips = pixels.to(self.device), truth_on(truth, self.device)
                loss, asked = self._question_loss(*clips, g, sighted)
                # The eye continues learning from many scenes, not only from the few of this step's clips.
                if moves:
                    loss = loss + plan.dense * look(*self._cells_there(*cells))
            update(loss, opts, self.vision + self.text, done)
            self.step = step + 1
            mean = asked if mean == 0 else 0.98 * mean + 0.02 * asked
            if self.step % 10 == 0:
                bar.set_postfix(loss=f"{mean:.4f}")
            if self.step % 100 == 0:
                self.save(opts)
        self.save(opts)

    def estimate(self) -> dict[str, float]:
        """The cost of the plan: steps, FLOPs of all steps, operations of a step. Draws a step of
        each stage."""
        plan = self.plan
        pixels, truth = windows(plan.batch2, plan.frames, plan.seed)
        clips = pixels.to(self.device), truth_on(truth, self.device)
        cells = self._cells_there(*single_frames(plan.batch1, plan.seed))

        def asked(sighted: bool) -> Tensor:
            g = torch.Generator(self.device).manual_seed(plan.seed)
            return self._question_loss(*clips, g, sighted)[0]

        with self._there():
            frames = counted(lambda: self._cell_loss(*cells))
            blind, sighted = (counted(lambda eye=eye: asked(eye)) for eye in (False, True))  # type: ignore[misc]
        self.model.zero_grad()
        moves = plan.steps2 * (1 - plan.frozen)
        seen = moves * plan.sighted
        parts = [(plan.steps1 + moves, frames), (plan.steps2 - seen, blind), (seen, sighted)]
        return summed(plan.steps1 + plan.steps2, parts)

    def _ahead(self, stage: int, begin: int) -> Any:
        """Yield batches from ``begin`` on, drawn by other processes while this one learns; a resumption gets
        the same ones."""
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
            kept = keep.flatten(0, 1) if keep is not None else None
            states = vlm.patches(self.model, pixels.flatten(0, 1), kept)
            tokens = vlm.gather(self.model, states)
        asked, which = choose(plan, pixels.shape[1], g)
        yes, known = answers(truth)
        after = torch.tensor([a.after for a in asked])
        target, sure = yes[:, after, which], known[:, after, which].float()
        first = (
            1 if torch.rand(1, generator=g).item() < 0.5 else int(torch.randint(1, 100, (1,), generator=g))
        )
        shaped = tokens.view(*pixels.shape[:2], vlm.TOKENS, -1)
        reading = vlm.answer(self.model, shaped, asked, keep, first, self.heads.layers)
        two, every = reading.answers, reading.words
        table = vlm.vocabulary()
        said = torch.where(target, table[vlm.YES], table[vlm.NO])
        ce = functional.cross_entropy(two.flatten(0, 1), (~target).flatten().long(), reduction="none")
        full = functional.cross_entropy(every.flatten(0, 1), said.flatten(), reduction="none")
        weight = sure.flatten() / sure.sum().clamp(min=1)
        loss = (ce * weight).sum()
        asked_loss = loss.item()
        loss = loss + 0.1 * (full * weight).sum() + plan.frame * self.heads.frame_loss(reading.frames, truth)
        if sighted and plan.dense:
            coarse, fine = cell_labels(truth)
            labels = coarse.flatten(0, 1), fine.flatten(0, 1)
            loss = loss + plan.dense * self.heads.loss(tokens, states, labels, kept)
        return loss, asked_loss


def choose(plan: Plan, t: int, g: torch.Generator) -> tuple[list[Asked], Tensor]:
    """Draw questions after several prefixes of a clip of ``t`` frames.

    Product questions come twice as often as others; wordings vary.
    """
    ends = [t - 1, *(1 + torch.randperm(t - 2, generator=g)[: plan.prefixes - 1]).tolist()]
    odds = torch.tensor(
        [
            {"left": 6.0, "lying": 4.0, "many": 5.0, "count": 2.0}.get(n, 2.0 if n in PRODUCT else 1.0)
            for n in NAMES
        ]
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
    """From now on, mix real backgrounds and people from this folder into drawings; return whether the folder
    has any.
    """
    _footage["now"] = load_footage(where) if where else None
    return _footage["now"] is not None


def composite(scene: scenes.Scene) -> Composite:
    """Return the pictures to paste into a batch: invented backgrounds and, if footage is in use, real
    backgrounds and people.
    """
    return Composite(_footage.get("now"), scene)


def windows(batch: int, frames: int, seed: int) -> tuple[Tensor, scenes.Truth]:
    """Draw clips as the fleet samples them: pixels [B, T, 3, 112, 112] in 0..1 at two frames a second, and
    truth."""
    scene = scenes.sample(batch, frames * STEP_S, seed)
    times = torch.arange(frames) * STEP_S
    now = scenes.observe(scene, times)
    pixels = drawing.render(scene, times, vlm.SIZE, now, pasted=composite(scene))
    return pixels.permute(0, 1, 4, 2, 3).contiguous(), now.truth


def single_frames(batch: int, seed: int, moments: int = 4) -> tuple[Tensor, Labels]:
    """Draw ``moments`` frames of each of ``batch / moments`` scenes, with what is in their cells.

    The pixels are [B, 3, 112, 112]; the labels are those of :func:`cell_labels` without the time dimension.
    """
    g = torch.Generator().manual_seed(seed)
    scene = scenes.sample(batch // moments, 10.0, seed)
    times = torch.rand(batch // moments, moments, generator=g).sort(1).values * 10
    now = scenes.observe(scene, times)
    pixels = drawing.render(scene, times, vlm.SIZE, now, pasted=composite(scene))
    coarse, fine = cell_labels(now.truth)
    order = torch.randperm(batch, generator=g)
    return (
        pixels.permute(0, 1, 4, 2, 3).flatten(0, 1)[order].contiguous(),
        (coarse.flatten(0, 1)[order], fine.flatten(0, 1)[order]),
    )
