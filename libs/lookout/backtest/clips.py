"""A question and a rule on video files, without a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from lookout.backtest.results import Backtest
from lookout.pipeline import Pipeline
from lookout.rules import Outcome, Rule, WatchVerdict


def clip_backtest(pipeline: Pipeline, clips: Iterable[Path], rule: Rule) -> Backtest:
    """The incidents that a rule makes of a pipeline's first question on some files.

    Args:
        pipeline: With the question.
        clips: Files; each is a camera of its own, and its times are milliseconds of the file.
        rule: When answers become an incident.

    Raises:
        LookoutError: A file cannot be read.
    """
    backtest = Backtest(rule)
    for clip in clips:
        for verdict in _verdicts(pipeline, clip, rule):
            backtest.add(verdict)
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
        )
