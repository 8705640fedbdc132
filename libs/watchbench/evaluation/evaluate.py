"""Scores a checkpoint on labelled clips: F1 per question and cost, with and without pruning and reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookout.models import window_defaults
from lookout.models.engines import Question, load_engine
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.vision import Tower
from lookout.models.windows import Policy, WindowSettings
from lookout.pruning import MaskPolicy, keeping_everything, policy_of
from lookout.streams import ClipWindow
from watchbench.evaluation.clip_windows import (
    ClipStream,
    answer_streams,
    encode_clip,
    prefill_flops,
    vision_flops,
)
from watchbench.evaluation.labels import LabelledClip, questions_of
from watchbench.evaluation.scores import LabelledAnswers, pooled

Progress = Callable[[Iterable[LabelledClip], str], Iterable[LabelledClip]]
DENSE, PRUNED, REUSED = "dense", "pruned", "pruned and reused"


@dataclass(slots=True)
class Way:
    """One way to compute the same windows.

    Attributes:
        answers: Per question, p(yes) and truth.
        kept: Visual tokens kept, of `total`.
        total: Visual tokens of the same windows with nothing pruned.
        prefill_flops: FLOPs of the language model, without the questions.
        vision_flops: FLOPs of the vision tower; each block is encoded once.
        apart: |difference of p(yes)| from the dense way, for every window and question.
    """

    answers: dict[str, LabelledAnswers] = field(default_factory=dict)
    kept: int = 0
    total: int = 0
    prefill_flops: int = 0
    vision_flops: int = 0
    apart: list[float] = field(default_factory=list)

    def as_json(self, dense: Way) -> dict[str, Any]:
        """Return the scores, and the costs as shares of the dense way's."""
        f1 = {name: scores.f1() for name, scores in self.answers.items()}
        defined = [value for value in f1.values() if value is not None]
        spent, total = (way.prefill_flops + way.vision_flops for way in (self, dense))
        return {
            "f1": {name: None if value is None else round(value, 4) for name, value in f1.items()},
            "mean_f1": round(float(np.mean(defined)), 4) if defined else None,
            "tokens_kept": round(self.kept / max(1, self.total), 4),
            "flops": spent,
            "flops_share": round(spent / max(1, total), 4),
            "dp": round(float(np.mean(self.apart)), 5) if self.apart else 0.0,
        }


@dataclass(slots=True)
class Evaluation:
    """Scores of a checkpoint on labelled clips: the ways by name, and the number of clips and
    windows scored."""

    ways: dict[str, Way]
    clips: int
    windows: int

    def as_json(self) -> dict[str, Any]:
        """Return the scores as the command prints them in its last line."""
        dense = self.ways[DENSE]
        return {
            "clips": self.clips,
            "windows": self.windows,
            "ways": {name: way.as_json(dense) for name, way in self.ways.items()},
        }

    @property
    def product(self) -> dict[str, LabelledAnswers]:
        """The answers per question in the way that the fleet computes them: pruned, with KV reused."""
        return self.ways[REUSED].answers


def evaluate(
    model: Path | str,
    clips: Sequence[LabelledClip],
    *,
    window_s: float | None = None,
    stride_s: float | None = None,
    fps: float | None = None,
    preset: str = DEFAULT,
    policy: MaskPolicy | str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = lambda clips, _: clips,
) -> Evaluation:
    """Score a checkpoint on labelled clips.

    Every window is answered three times: with all tokens and computed in full, pruned and computed in full,
    and pruned with KV reused, as `preset` says. Windows at the border of a labelled span are not scored.

    Args:
        model: Folder of the checkpoint.
        clips: The labelled clips.
        window_s: Length of a window, a whole number of strides; None: as the folder says
            (`lookout.models.window_defaults`).
        stride_s: Seconds by which windows slide, a whole number of samples; None: as the folder says.
        fps: Sampled frames a second; None: as the folder says.
        preset: Which patches are kept and how windows reuse KV: a name in `lookout.models.presets.PRESETS`.
        policy: What pruning keeps, or its name in `lookout.pruning.POLICIES`; None: as the preset says.
        device: Where the model runs.
        dtype: Type of the model's arithmetic; None: the device's default.
        progress: Wraps the clips, for a progress bar.

    Raises:
        LookoutError: The model does not load, a clip cannot be read, or sample rate, stride and window do not
            fit together.
    """
    rules = preset_of(preset)
    masks = policy_of(policy) if isinstance(policy, str) else policy or rules.masks
    tower, engine = load_tower(model, device=device, dtype=dtype), load_engine(model, device, dtype)
    sampling = window_defaults(Path(model)).changed(fps=fps, stride_s=stride_s, window_s=window_s)
    base = rules.windows.sampled(sampling)
    questions = [Question(text, text) for text in questions_of(clips)]
    ways = {name: Way({text.id: LabelledAnswers() for text in questions}) for name in (DENSE, PRUNED, REUSED)}
    windows = 0
    plans = {DENSE: (0, _whole(base)), PRUNED: (1, _whole(base)), REUSED: (1, base)}
    for clip in progress(clips, "clips"):
        clip_questions = [question for question in questions if question.id in clip.spans]
        encodings = encode_clip(clip.path, tower, [keeping_everything(masks), masks], sampling)
        answered = {
            name: answer_streams(engine, settings, encodings[place], clip_questions)
            for name, (place, settings) in plans.items()
        }
        for name, (place, _) in plans.items():
            _count_vision(ways[name], encodings[place], tower)
            _count_windows(ways[name], clip, answered[name], answered[DENSE])
        windows += len(answered[DENSE])
    engine.close()
    return Evaluation(ways, len(clips), windows)


def calibrate(answers: dict[str, LabelledAnswers], precision: float) -> dict[str, Any]:
    """Find the threshold of every question for a wanted precision, and measure the calibration error of
    p(yes).

    Args:
        answers: Per question, p(yes) and truth.
        precision: Wanted share of true windows among those above the threshold.
    """
    all_answers = pooled(list(answers.values()))
    return {
        "precision": precision,
        "thresholds": {name: scores.threshold_for(precision) for name, scores in answers.items()},
        "calibration_error": round(all_answers.calibration_error, 4),
        "reliability": [[round(p, 4), round(true, 4), count] for p, true, count in all_answers.reliability()],
    }


def _whole(settings: WindowSettings) -> WindowSettings:
    return replace(settings, policy=Policy.PRUNE_ONLY)


def _count_vision(way: Way, streams: Sequence[ClipStream], tower: Tower) -> None:
    """Add the tokens and vision FLOPs of one clip to a way."""
    frames = [frame for stream in streams for block in stream.blocks for frame in block.block.frames]
    way.vision_flops += vision_flops(streams, tower)
    way.kept += sum(int(frame.keep.sum()) for frame in frames)
    way.total += sum(frame.keep.size for frame in frames)


def _count_windows(
    way: Way, clip: LabelledClip, windows: Sequence[ClipWindow], dense: Sequence[ClipWindow]
) -> None:
    """Add the answers and prefill FLOPs of one clip to a way."""
    for window, reference in zip(windows, dense, strict=True):
        way.prefill_flops += prefill_flops(window)
        for answer, exact in zip(window.answer.answers, reference.answer.answers, strict=True):
            way.apart.append(abs(answer.p_yes - exact.p_yes))
            true = clip.truth(answer.question, window.start_s, window.end_s)
            # None: the window is at the border of a span, where people would disagree as well.
            if true is not None:
                way.answers[answer.question].add(answer.p_yes, true)
