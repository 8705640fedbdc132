"""Combines the outcomes of a job's parts into the job's answers, as `lookout analyze` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lookout.recordings.analysis import Analysis, QuestionAnswer
from lookout.recordings.analysis.begin import begin_and_source
from lookout.recordings.analysis.results import answer_of, gaps_of_parts
from lookout.recordings.jobs.begins import begin_of
from lookout.recordings.jobs.outcomes import gap_messages, gap_of, moments, result_of, times
from lookout.v1.recordings_pb2 import (
    PartOutcome,
    PlannedRecording,
    RecordingAnswer,
    RecordingAnswers,
    RecordingPlan,
    RecordingQuestionAnswer,
    RecordingRange,
)
from lookout.video.segments import CodecError
from lookout.wire import MAX_MESSAGE_BYTES
from lookout.wire.begins import set_begin
from lookout.wire.shares import share_messages, shares_of

#: maximum bytes of a job's answers in binary form; their JSON is larger
_MOST_BYTES = MAX_MESSAGE_BYTES // 4


def answers_of(
    plan: RecordingPlan, outcomes: Mapping[int, PartOutcome], state: RecordingAnswers.State
) -> RecordingAnswers:
    """Return the answers of a job that has ended.

    Args:
        plan: The job's plan.
        outcomes: The outcomes, by the part's number in the job. A part without an outcome was not answered.
        state: How the job ended.
    """
    answers = RecordingAnswers(
        id=plan.job.id, state=state, parts=plan.parts, done=len(outcomes), reason=plan.reason
    )
    by_recording: dict[int, list[PartOutcome]] = {}
    for _, outcome in sorted(outcomes.items()):
        by_recording.setdefault(outcome.recording, []).append(outcome)
    for number, recording in enumerate(plan.recordings):
        answer = _answer(recording, by_recording.get(number, []), plan.job.questions)
        begin, answer.begins_from = begin_and_source(begin_of(plan.job.settings), begin_of(recording))
        set_begin(answer, begin)
        answers.recordings.append(answer)
    # If long descriptions make the answers too large, keep only those of each question's best part.
    if answers.ByteSize() > _MOST_BYTES:
        for answer in answers.recordings:
            for outcome in answer.parts:
                for part_answer in outcome.answers:
                    part_answer.ClearField("text")
                    part_answer.ClearField("moments")
    return answers


def _answer(
    recording: PlannedRecording, outcomes: Sequence[PartOutcome], questions: Sequence[str]
) -> RecordingAnswer:
    """Combine the outcomes of one recording's parts into its answers."""
    results = [result_of(outcome, questions) for outcome in outcomes]
    gaps = gaps_of_parts(results, map(gap_of, recording.gaps))
    answer = RecordingAnswer(
        uri=recording.uri,
        reason=recording.reason,
        seconds=recording.seconds,
        frames=recording.frames,
        parts=outcomes,
        gaps=gap_messages(gaps),
    )
    if recording.reason:
        return answer
    try:
        answer.answers.extend(
            _question_message(answer_of(question, place, results)) for place, question in enumerate(questions)
        )
    except CodecError as error:
        reasons = {outcome.reason for outcome in outcomes if outcome.reason}
        answer.reason = reasons.pop() if len(reasons) == 1 else error.detail
    return answer


def _question_message(best: QuestionAnswer) -> RecordingQuestionAnswer:
    return RecordingQuestionAnswer(
        question=best.question,
        p_yes=best.p_yes,
        part=best.part,
        start_s=best.start_s,
        end_s=best.end_s,
        moments=moments(best.seen_s),
        yes=[RecordingRange(start_s=start_s, end_s=end_s) for start_s, end_s in best.yes_s],
        text=best.text or "",
        answers=share_messages(best.answers),
    )


def analysis_of(answer: RecordingAnswer) -> Analysis:
    """Return a recording's answers in the form of `lookout analyze`, without timings."""
    questions = tuple(entry.question for entry in answer.answers)
    return Analysis(
        source=answer.uri,
        seconds=answer.seconds,
        frames=answer.frames,
        questions=questions,
        answers=tuple(
            QuestionAnswer(
                entry.question,
                entry.p_yes,
                entry.part,
                entry.start_s,
                entry.end_s,
                times(entry.moments),
                tuple((span.start_s, span.end_s) for span in entry.yes),
                entry.text or None,
                shares_of(entry.answers),
            )
            for entry in answer.answers
        ),
        parts=tuple(result_of(outcome, questions) for outcome in answer.parts),
        gaps=tuple(gap_of(gap) for gap in answer.gaps),
        begins=begin_of(answer),
        begins_from=answer.begins_from,
    )
