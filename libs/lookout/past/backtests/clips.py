"""Back-tests a question and a rule on video files, without a fleet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from lookout.models.windows import StrideBlock
from lookout.past.backtests.results import Backtest
from lookout.rules import Activity, Outcome, Rule, RuleError, WatchVerdict
from lookout.streams.pipeline import Pipeline, PipelineError
from lookout.streams.session import SessionWindow
from lookout.text import clean
from lookout.v1.labels_pb2 import Label
from lookout.v1.verdicts_pb2 import Evidence
from lookout.values import moment_of
from lookout.video.files import VideoReader
from lookout.video.files.names import video_files
from lookout.video.segments import CodecError

#: stages of `Cost.flops` that belong to questions; the others belong to the window, which all questions share
_QUESTIONS = ("questions", "describe")


def clip_backtest(
    pipeline: Pipeline,
    clips: str | Path | Iterable[str | Path],
    rule: Rule,
    *,
    labels: Sequence[Label] = (),
    begins: Callable[[Path], datetime] | None = None,
) -> Backtest:
    """Return the incidents that a rule opens in video files, given a pipeline's answers to its first
    question.

    Each file counts as a camera, named by `clip_cameras`. Times are milliseconds since the file's begin.
    Files that cannot be read are listed in `Backtest.unread`. An incident's evidence is the frames that its
    windows attended to most, as references without a record.

    Every call decodes and encodes the files again, so a back-test costs as much as watching the files, and
    `live_share` is about 1.

    Args:
        pipeline: The pipeline with the question.
        clips: Files, and folders whose video files are used, including those in subfolders.
        rule: When answers become an incident.
        labels: People's labels of moments in these files, with cameras and times as in the incidents.
        begins: Returns when a file begins, for a rule with a schedule; a time without a time zone is local.
            None: the file says when it begins; a file that does not is listed in `Backtest.unread`.

    Raises:
        PipelineError: `pipeline` is not a pipeline, has no question, or is closed; or `clips` are not paths.
        RuleError: The rule is not valid.
    """
    _check_kinds(pipeline, rule)
    if not pipeline.questions:
        raise PipelineError("a back-test needs a pipeline with a question: Pipeline(questions=[...])")
    backtest = Backtest(rule, labels, timeline={})
    with backtest.measured(pipeline.device):
        for camera, clip in clip_cameras(clips).items():
            begin_ms = 0
            try:
                begin_ms = _begin_ms(clip, begins) if rule.schedule else 0
                for verdict in _verdicts(backtest, pipeline, clip, camera, begin_ms):
                    backtest.add(verdict)
            except (CodecError, OSError, RuleError) as error:
                backtest.unread[str(clip)] = str(error)
            backtest.shift(camera, -begin_ms)
    return backtest


def _check_kinds(pipeline: object, rule: object) -> None:
    if not isinstance(pipeline, Pipeline):
        raise PipelineError(f"pipeline must be a lookout.Pipeline, not {clean(repr(pipeline), 80)}")
    if not isinstance(rule, Rule):
        raise RuleError(f"rule must be a lookout Rule, not {clean(repr(rule), 80)}")


def clip_cameras(clips: str | Path | Iterable[str | Path]) -> dict[str, Path]:
    """Return the files of a back-test by camera. A camera is named after its file, or after the file's path
    if an earlier file has the same name.

    Args:
        clips: Files and folders. A folder without a video file counts as a file that cannot be read.

    Raises:
        PipelineError: One of them is not a path.
    """
    sources = (
        [clips] if isinstance(clips, (str, bytes, Path)) or not isinstance(clips, Iterable) else [*clips]
    )
    for source in sources:
        if not isinstance(source, (str, os.PathLike)):
            raise PipelineError(f"clips must be paths of files or folders, not {clean(repr(source), 80)}")
    paths = [Path(source) for source in sources]
    files = [file for path in paths for file in (path.is_dir() and video_files(path)) or [path]]
    cameras: dict[str, Path] = {}
    for file in dict.fromkeys(files):
        cameras[str(file) if file.name in cameras else file.name] = file
    return cameras


def _begin_ms(clip: Path, begins: Callable[[Path], datetime] | None) -> int:
    """Return when a file begins, in Unix milliseconds.

    Raises:
        CodecError: The file cannot be read.
        RuleError: The file's begin is unknown, or is ambiguous or invalid because of daylight saving time.
    """
    if begins is not None:
        given = begins(clip)
        moment = moment_of(f"begins={clean(given, 60)}", given, RuleError)
    else:
        with VideoReader(str(clip)) as reader:
            moment = reader.facts.begins
    if moment is None:
        raise RuleError("schedule: the file does not say when it begins; give the time with `begins`")
    return round(moment.timestamp() * 1000)


def _verdicts(
    backtest: Backtest, pipeline: Pipeline, clip: Path, camera: str, begin_ms: int
) -> Iterator[WatchVerdict]:
    begun, epoch = 0.0, 1
    for number, window in enumerate(pipeline.windows(clip)):
        if window.begun != begun:  # the stream was cut
            begun, epoch = window.begun, epoch + 1
        _count(backtest, window)
        answered = bool(window.answers)
        refusal = window.played.refusal
        yield WatchVerdict(
            camera=camera,
            epoch=epoch,
            window=number,
            watch="backtest",
            version=1,
            outcome=Outcome(refusal.kind.value) if refusal is not None else Outcome.ANSWERED,
            p_yes=(window.answers[0].p_yes or 0.0) if answered else 0.0,
            start_ms=begin_ms + round(window.start * 1000),
            end_ms=begin_ms + round(window.end * 1000),
            rule=backtest.rule,
            activity=_activity(window.played.blocks[-1]) if answered and backtest.rule.zones else None,
            evidence=tuple(map(_moment, window.answers[0].evidence)) if answered else (),
        )


def _count(backtest: Backtest, window: SessionWindow) -> None:
    """Add a window's cost, and its cost without pruning and reuse, as `chains.verdicts.cost_of` does."""
    plan, answer = window.played.plan, window.played.answer
    if plan is None or answer is None:
        return
    cost, first = answer.cost, answer.answers[0]
    question_flops = sum(cost.flops.get(stage, 0) for stage in _QUESTIONS)
    question = round(question_flops * first.tokens / max(cost.question_tokens, 1))
    dense = plan.rows - window.tokens_kept + window.tokens_total
    backtest.cost.flops += window.vision_flops + cost.total_flops
    backtest.cost.flops_windows += window.vision_flops + cost.total_flops - question_flops
    backtest.cost.flops_question += question
    backtest.cost.flops_dense += window.vision_flops_dense + cost.full_flops(dense) + question


def _activity(block: StrideBlock) -> Activity | None:
    """Return where a block's picture changed: the token groups kept in frames that are not anchors. None if
    the block has no frames."""
    masks = [frame.keep for frame in block.frames if not frame.anchor]
    if not block.frames:
        return None
    rows, cols = block.frames[0].keep.shape
    moved = np.logical_or.reduce([np.zeros((rows, cols), bool), *masks])
    return Activity(rows, cols, frozenset(np.flatnonzero(moved).tolist()))


def _moment(time_s: float) -> bytes:
    """Return a serialised `Evidence` that refers to a file's frame at `time_s`."""
    frame = Evidence()
    frame.time.FromMilliseconds(round(1000 * time_s))
    return frame.SerializeToString(deterministic=True)
