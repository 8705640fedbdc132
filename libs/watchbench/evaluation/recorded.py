"""Answers about a recording whose KV is pruned after each group of frames (`lookout analyze`)."""

from __future__ import annotations

from collections.abc import Sequence

from lookout.models.engines import Question
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.windows import EncodedFrame
from lookout.recordings import GroupPlanner, PrefillSettings, grouped


def ask_recording(
    engine: TransformersEngine,
    frames: Sequence[EncodedFrame],
    how: PrefillSettings,
    questions: Sequence[Question],
    *,
    at_end: bool = False,
) -> tuple[list[float], int]:
    """Return p(yes) of every question about a whole clip, and the bytes of KV that were kept.

    Args:
        engine: Computes the prefill.
        frames: The clip's encoded frames.
        how: How it is prefilled.
        questions: Asked at its end.
        at_end: Whether questions that score groups are asked after the whole clip instead of after their
            group.
    """
    plans = GroupPlanner(engine.layout, how).plans("clip", frames)
    run = GroupPrefill(engine, how, questions=questions)
    for plan, group in zip(plans, grouped(frames, how.group_frames), strict=True):
        run.add(plan, group, question_position=plans[-1].question_position if at_end else None)
    return [each.answer.p_yes for each in run.ask(questions)[0]], run.kv.kv_bytes
