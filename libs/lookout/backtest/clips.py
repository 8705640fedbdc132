"""A question and a rule on video files, without a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from lookout.backtest.results import Backtest
from lookout.pipeline import Pipeline
from lookout.rules import Outcome, Rule, WatchVerdict
from lookout.segments import CodecError
from lookout.v1.verdicts_pb2 import Evidence


def clip_backtest(pipeline: Pipeline, clips: Iterable[Path], rule: Rule) -> Backtest:
    """The incidents that a rule makes of a pipeline's first question on some files.

    Args:
        pipeline: With the question.
        clips: Files; each is a camera of its own, and its times are milliseconds of the file. What cannot be
            read of them is in `Backtest.unread`. The evidence of an incident is the middle of its strongest
            windows: a reference to a frame without a record, its time is that of the file.
        rule: When answers become an incident.
    """
    backtest = Backtest(rule, timeline={})
    for clip in clips:
        try:
            for verdict in _verdicts(pipeline, clip, rule):
                backtest.add(verdict)
        except CodecError as error:
            backtest.unread[str(clip)] = str(error)
    return backtest


def _verdicts(pipeline: Pipeline, clip: Path, rule: Rule) -> Iterator[WatchVerdict]:
    question, newest_s, epoch = "", 0.0, 1
    for number, verdict in enumerate(pipeline.watch(clip)):
        question = question or verdict.question
        if verdict.question != question:
            continue
        if verdict.start > newest_s:  # nothing of the window before is in this one: the stream was cut
            epoch += 1
        newest_s = verdict.time
        yield WatchVerdict(
            camera=clip.name,
            epoch=epoch,
            window=number,
            watch=question,
            version=1,
            outcome=Outcome.ANSWERED,
            p_yes=verdict.p_yes,
            start_ms=round(verdict.start * 1000),
            end_ms=round(verdict.time * 1000),
            rule=rule,
            evidence=(_middle(verdict.start, verdict.time),),
        )


def _middle(start_s: float, end_s: float) -> bytes:
    """A reference to the middle of a window of a file."""
    frame = Evidence()
    frame.time.FromMilliseconds(round(500 * (start_s + end_s)))
    return frame.SerializeToString(deterministic=True)
