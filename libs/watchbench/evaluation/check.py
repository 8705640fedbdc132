"""Checks that a checkpoint runs as in transformers: pixels, prompt, positions and answers on a real clip."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookout.errors import LookoutError
from lookout.models import window_defaults
from lookout.models.completeness import check_loaded
from lookout.models.device import default_dtype
from lookout.models.engines import EngineError, Question, WindowRequest
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.model import take_language_model
from lookout.models.families import (
    LAYOUT_FILE,
    Family,
    close_thought,
    family_of,
    load_layout,
    load_tokenizer,
    load_tower,
    read_config,
)
from lookout.models.families.trial import try_prompt
from lookout.models.vision import Tower, VisionError
from lookout.models.windows import (
    NEWLINE,
    VISUAL,
    Layout,
    Planner,
    StrideBlock,
    WindowError,
    WindowPlan,
    WindowSettings,
)
from lookout.pruning import PrunePolicy
from lookout.streams import ClipFrames, encode_strides, read_clip

QUESTION = "Is a person in view?"
MEANINGFUL = 0.1
"""Yes and No together have at least this probability; with less, the checkpoint would say something else."""
CLOSE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
"""Largest relative difference of answers and tokens from the stock model's, by dtype."""
_TENSORS = frozenset(
    (
        *("pixel_values", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
        *("image_grid_thw", "patch_positions"),  # where frames are pictures of their own
    )
)


class CheckError(LookoutError, ValueError):
    """The checkpoint or the clip cannot be checked."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison with the stock processor or model.

    Attributes:
        name: The thing compared.
        same: Whether Lookout gives the same; None: not compared.
        detail: The measured difference, where the two differ, or why they are not compared.
    """

    name: str
    same: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a checkpoint is, what it needs, and how it compares.

    Attributes:
        family: transformers' model type.
        language_model: transformers' type of the language half.
        engines: Engines that run it.
        height: Height of the input in pixels.
        width: Width of the input in pixels.
        tokens: Visual tokens of a frame, nothing pruned.
        window_s: Seconds of a window.
        fps: Sampled frames a second.
        window_rows: Rows of such a window, nothing pruned.
        row_bytes: KV bytes of a row.
        weight_bytes: Bytes of the weights.
        cameras: Number of cameras that `memory_bytes` is for.
        memory_bytes: Bytes of the weights and of the KV of one whole window per camera.
        comparisons: The comparisons with the stock model.
        answer: The texts of the two tokens whose probabilities are compared, yes first.
        answer_probability: Probability of both together where the answer is read, on the clip.
    """

    family: str
    language_model: str
    engines: tuple[str, ...]
    height: int
    width: int
    tokens: int
    window_s: float
    fps: float
    window_rows: int
    row_bytes: int
    weight_bytes: int
    cameras: int
    memory_bytes: int
    comparisons: tuple[Comparison, ...]
    answer: tuple[str, str]
    answer_probability: float

    @property
    def answers(self) -> bool:
        """Whether the model answers with yes or no where p(yes) is read."""
        return self.answer_probability >= MEANINGFUL

    @property
    def same(self) -> bool:
        """Whether no comparison differs."""
        return all(comparison.same is not False for comparison in self.comparisons)

    def as_json(self) -> dict[str, Any]:
        """Return the report as the command prints it in its last line."""
        return {**asdict(self), "same": self.same, "answers": self.answers}


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    """A stock model with Lookout's tower and layout of it."""

    whole: Any
    processor: Any
    tokenizer: Any
    tower: Tower
    layout: Layout
    dtype: str
    own_layout: bool

    @property
    def family(self) -> Family:
        """The registry's record of its family."""
        return family_of(self.layout.family)


def check_model(
    folder: Path | str,
    clip: Path | str,
    *,
    cameras: int = 1,
    window_s: float | None = None,
    fps: float | None = None,
    frames: int = 8,
    device: str = "cpu",
    dtype: str | None = None,
) -> ModelReport:
    """Load a checkpoint and compare it with the stock processor and model on a clip.

    Args:
        folder: The checkpoint.
        clip: A clip of at least `frames` samples.
        cameras: Cameras to size the memory for.
        window_s: Length of a window; None: as the folder says (`lookout.models.window_defaults`).
        fps: Sampled frames a second; None: as the folder says.
        frames: Samples that are compared; an even number.
        device: Where it runs.
        dtype: Type of the model's arithmetic; None: the device's default.

    Raises:
        CheckError: The folder is not a checkpoint that can run, or the clip is too short.
    """
    own = window_defaults(Path(folder))
    window_s, fps = window_s or own.window_s, fps or own.fps
    loaded = _load(Path(folder), device, dtype or default_dtype(device))
    clip_frames = read_clip(clip, loaded.tower.grid, fps)
    if len(clip_frames.frames) < frames:
        raise CheckError(
            f"{clip} has {len(clip_frames.frames)} samples at {fps:g} a second, and {frames} are compared"
        )
    shown = ClipFrames(clip_frames.frames[:frames], clip_frames.step_us)
    encoding = encode_strides([shown.frames], loaded.tower, PrunePolicy(everything=True), shown.step_us)
    blocks = [StrideBlock("check/0", 0, encoding.strides[0])]
    plan = Planner(loaded.layout, WindowSettings(1, samples=frames, stride_s=frames / fps)).plan(blocks)
    stock = _stock_inputs(loaded, shown)
    comparisons = [
        _pixels(loaded, shown, stock),
        _prompt(loaded, plan, stock),
        _positions(loaded, plan, stock),
    ]
    answers, probability = _answers(loaded, plan, blocks, stock)
    per_frame = (plan.rows - len(loaded.layout.prefix)) / len(blocks[0].frames)
    return _report(
        loaded,
        [*comparisons, answers],
        per_frame,
        probability=probability,
        cameras=cameras,
        window_s=window_s,
        fps=fps,
    )


def _report(
    loaded: _Loaded,
    comparisons: Sequence[Comparison],
    per_frame: float,
    *,
    probability: float,
    cameras: int,
    window_s: float,
    fps: float,
) -> ModelReport:
    """Build the report from the loaded model and the comparisons."""
    text = loaded.whole.config.get_text_config()
    row_bytes = _row_bytes(text, loaded.whole.dtype.itemsize)
    weights = sum(part.numel() * part.element_size() for part in loaded.whole.parameters())
    count = window_s * fps / loaded.tower.grid.temporal
    rows = round(per_frame * count) + len(loaded.layout.prefix)
    grid = loaded.tower.grid
    return ModelReport(
        family=loaded.layout.family,
        language_model=str(text.model_type),
        engines=("transformers", "vllm") if text.model_type in loaded.family.text_models else (),
        height=grid.height,
        width=grid.width,
        tokens=grid.tokens,
        window_s=window_s,
        fps=fps,
        window_rows=rows,
        row_bytes=row_bytes,
        weight_bytes=weights,
        cameras=cameras,
        memory_bytes=weights + cameras * rows * row_bytes,
        comparisons=tuple(comparisons),
        answer=(
            str(loaded.tokenizer.decode([loaded.layout.yes])),
            str(loaded.tokenizer.decode([loaded.layout.no])),
        ),
        answer_probability=probability,
    )


def _row_bytes(text: Any, itemsize: int) -> int:
    """Bytes of K and V of one row in all layers, from the language model's configuration."""
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    return 2 * int(text.num_hidden_layers) * int(text.num_key_value_heads) * head_dim * itemsize


def _load(folder: Path, device: str, dtype: str) -> _Loaded:
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor

    try:
        family = family_of(read_config(folder)["model_type"])
        family.register()
        try_prompt(folder)
        layout = load_layout(folder)
        full_model, report = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=getattr(torch, dtype), output_loading_info=True, trust_remote_code=False
        )
        check_loaded(folder, report["missing_keys"], full_model.named_parameters())
        full_model = full_model.to(device).eval().requires_grad_(False)
        kind = AutoProcessor if family.has_processor else AutoImageProcessor
        processor = kind.from_pretrained(folder, trust_remote_code=False)
        tower = load_tower(folder, device=device, dtype=getattr(torch, dtype))
    except (WindowError, VisionError, OSError, ValueError, KeyError) as error:
        text = str(error)
        raise CheckError(text if text.startswith(str(folder)) else f"{folder}: {text}") from error
    tokenizer = load_tokenizer(folder)
    own_layout = (folder / LAYOUT_FILE).is_file()
    return _Loaded(full_model, processor, tokenizer, tower, layout, dtype, own_layout)


@torch.inference_mode()
def _stock_inputs(loaded: _Loaded, seen: ClipFrames) -> dict[str, Any]:
    """The stock processor's output for the sampled frames and a question."""
    from transformers.video_utils import VideoMetadata

    video = np.stack([frame.sample.pixels for frame in seen.frames])
    if not loaded.family.has_processor:
        return loaded.family.frame_inputs(loaded.processor, video)
    content = [{"type": "video"}, {"type": "text", "text": QUESTION}]
    # Passed only if the template names it: otherwise the processor would take it for an option of its own.
    knobs = {"enable_thinking": False} if "enable_thinking" in str(loaded.processor.chat_template) else {}
    text = loaded.processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=False,
        **knobs,
    )
    # A processor that prints the frames' own times gets them; others count positions on the even grid.
    own_times = loaded.family.prints_times
    fps = 1e6 if own_times else 1e6 / seen.step_us
    times = [frame.time_us for frame in seen.frames]
    metadata = VideoMetadata(
        total_num_frames=times[-1] + 1 if own_times else len(video),
        fps=fps,
        duration=len(video) * seen.step_us / 1e6,
        frames_indices=times if own_times else list(range(len(video))),
    )
    inputs = loaded.processor(
        text=[text],
        videos=[[torch.from_numpy(video).permute(0, 3, 1, 2)]],  # some families count the videos of each text
        video_metadata=[metadata],
        do_sample_frames=False,
        do_resize=False,
        return_tensors="pt",
    )
    return {name: inputs[name] for name in inputs}


def _pixels(loaded: _Loaded, seen: ClipFrames, stock: dict[str, Any]) -> Comparison:
    """Compare every value that enters the tower with the stock processor's for the same frames."""
    name = "pixel_values_videos" if "pixel_values_videos" in stock else "pixel_values"
    theirs = stock[name].float()
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in _normalisation(loaded.processor))
    pixels = torch.stack([torch.from_numpy(frame.sample.pixels) for frame in seen.frames])
    ours = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std
    ours = loaded.family.stock_pixels(ours, loaded.tower.grid)
    apart = float((ours.reshape(theirs.shape) - theirs).abs().max())
    return Comparison("pixels", apart < 1e-4, f"largest difference {apart:.1e} after normalisation")


def _normalisation(processor: Any) -> tuple[Sequence[float], Sequence[float]]:
    part = getattr(processor, "video_processor", None) or getattr(processor, "image_processor", processor)
    return part.image_mean, part.image_std


def _ids(loaded: _Loaded, plan: WindowPlan, suffix: Sequence[int]) -> torch.Tensor:
    """Return our prompt, with the stock placeholder at visual rows and newlines, int64 [1, rows]."""
    ids = np.array([*plan.token_ids.tolist(), *suffix])
    return torch.from_numpy(np.where((ids == VISUAL) | (ids == NEWLINE), _placeholder(loaded), ids))[None]


def _placeholder(loaded: _Loaded) -> int:
    config = loaded.whole.config
    for name in loaded.family.placeholders:
        token = getattr(config, name, None)
        if token is not None:
            return int(token)
    raise CheckError(f"{loaded.layout.family}: the configuration names no placeholder of visual tokens")


def _suffix(loaded: _Loaded) -> tuple[int, ...]:
    tokenizer, layout = loaded.tokenizer, loaded.layout
    ids = tokenizer.encode(QUESTION, add_special_tokens=False)
    return (*layout.question_head, *(int(i) for i in ids), *layout.question_tail)


def _prompt(loaded: _Loaded, plan: WindowPlan, stock: dict[str, Any]) -> Comparison:
    """Compare the prompt's text. Labels have a fixed width here, so numbers are compared as numbers."""
    if not loaded.family.has_processor:
        return Comparison("prompt", None, "transformers has no processor for it; Lookout's tests use vLLM's")
    if loaded.own_layout:
        return Comparison("prompt", None, f"the folder has a layout of its own ({LAYOUT_FILE})")
    tokenizer = loaded.tokenizer
    ours = str(tokenizer.decode(_ids(loaded, plan, _suffix(loaded))[0]))
    stock_text = str(tokenizer.decode(stock["input_ids"][0]))
    theirs = close_thought(stock_text)
    closed = "" if theirs == stock_text else ", with the thought closed that it opens"
    mine, other = (_without_zeros(text, loaded.family) for text in (ours, theirs))
    if mine == other:
        exact = "to the letter" if ours == theirs else "but for the width of labels"
        return Comparison("prompt", True, f"the same {exact}{closed}")
    if mine == loaded.family.stock_prompt(other):
        return Comparison(
            "prompt",
            True,
            f"the same but for the width of labels, and for what Lookout leaves out on purpose{closed}",
        )
    pairs = enumerate(zip(mine, other, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(other)))
    near = slice(max(0, at - 20), at + 20)
    return Comparison("prompt", False, f"ours {mine[near]!r}, the processor's {other[near]!r}")


def _without_zeros(text: str, family: Family) -> str:
    """Remove leading zeros from the numbers of labels."""
    label = family.prompt.label
    return text if label is None else re.sub(rf"(?<={re.escape(label['head'])})0+(?=\d)", "", text)


def _positions(loaded: _Loaded, plan: WindowPlan, stock: dict[str, Any]) -> Comparison:
    """Compare the plan's positions with those of the stock model for our prompt."""
    ids = _ids(loaded, plan, ())
    want = loaded.family.stock_positions(loaded.whole, ids, ids == _placeholder(loaded), stock)
    wrong = (torch.from_numpy(plan.positions.copy()) != want).any(0)
    if not bool(wrong.any()):
        return Comparison("positions", True, f"the same on all {plan.rows} rows")
    row = int(torch.nonzero(wrong)[0])
    return Comparison(
        "positions",
        False,
        f"row {row}: ours {plan.positions[:, row].tolist()}, the model's {want[:, row].tolist()}",
    )


@torch.inference_mode()
def _answers(
    loaded: _Loaded, plan: WindowPlan, blocks: Sequence[StrideBlock], stock: dict[str, Any]
) -> tuple[Comparison, float]:
    """Compare the engine's logits of Yes and No with the stock model's on our prompt.

    Returns:
        The comparison, and the stock model's probability of both together.
    """
    full_model, layout = loaded.whole, loaded.layout
    ids = _ids(loaded, plan, _suffix(loaded)).to(full_model.device)
    inputs = {
        name: value.to(full_model.device) if isinstance(value, torch.Tensor) else value
        for name, value in stock.items()
        if name in _TENSORS
    }
    for name in ("pixel_values", "pixel_values_videos"):
        if name in inputs:
            inputs[name] = inputs[name].to(full_model.dtype)
    inputs = loaded.family.stock_inputs(inputs, ids == _placeholder(loaded))
    logits = (
        full_model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0, -1].float().cpu()
    )
    want = logits[[layout.yes, layout.no]]
    probability = float(logits.softmax(-1)[[layout.yes, layout.no]].sum())
    engine = _engine(loaded)
    try:
        answer = engine.run([WindowRequest(plan, blocks, [Question("q", QUESTION)])])[0].unwrap().answers[0]
    except EngineError as error:
        return Comparison("answers", False, str(error)), probability
    actual = torch.tensor([answer.yes_logit, answer.no_logit])
    apart = float((actual - want).abs().max() / want.abs().max().clamp(min=1))
    p = float(want.softmax(0)[0])
    model = "the model's" if loaded.family.has_processor else "that of Lookout's own class for transformers"
    detail = f"p(yes) {answer.p_yes:.6f}, {model} {p:.6f}; logits differ by {apart:.1e}"
    return Comparison("answers", apart < CLOSE[loaded.dtype], detail), probability


def _engine(loaded: _Loaded) -> TransformersEngine:
    """Build the engine on the language half of the loaded model; the stock forward pass must be done
    before."""
    device = loaded.whole.device
    model = take_language_model(loaded.whole, loaded.layout.family, device)
    return TransformersEngine(model, loaded.layout, loaded.tokenizer, budget_bytes=1 << 40)
