"""Runs the parts of jobs. Each part gets exactly one outcome."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from lookout.errors import BadRecordError, RecordsGoneError
from lookout.models.engines import Question
from lookout.recordings import RecordingError
from lookout.recordings.analysis import AnalysisError, Analyzer
from lookout.recordings.jobs import (
    JobError,
    SourceError,
    Sources,
    outcome_of,
    part_of,
    settings_of,
    unanswered,
)
from lookout.recordings.jobs.samples import SampledReader, SamplesError
from lookout.runtime.worker import DeadLetter, Handler, Output, Record, Result, StoredCheckpoint
from lookout.runtime.worker.settings import digest
from lookout.services.recordings.opening import OpenedRecording
from lookout.services.recordings.past import PastParts
from lookout.v1.recordings_pb2 import PartOutcome, RecordingOutcome, RecordingPart
from lookout.video.motion.types import U8
from lookout.video.segments import CodecError
from lookout.wire import RECORDING_RESULTS, WireError, received

EVENTS = {
    "ahead": "parts whose pixels came from decode pods",
    "answered": "parts answered",
    "unanswered": "parts that could not be read, were cancelled or arrived too late",
}
#: why a record becomes a dead letter, counted in `lookout_dead_letters_total`
REASONS = {"bad-part": "a part that cannot be read"}
_log = structlog.get_logger(__name__)

Check = Callable[[], None]
"""Raises an exception if the part's answer is no longer needed."""
Ahead = Callable[[RecordingPart], U8 | None]
"""Fetches a part's pixels from decode pods (`lookout.recordings.jobs.samples`); None: decode them here."""


class _StoppedError(Exception):
    """The part's answer is no longer needed; the text says why."""


class PartsHandler(Handler[None]):
    """Runs parts one at a time, because a part uses every core or the GPU. Meanwhile, other threads that call
    `handle` fetch the next parts' pixels from decode pods.

    Args:
        analyzer: Runs the model.
        sources: Opens recordings.
        partitions: Number of partitions of the topic of outcomes.
        model_digest: The model's digest.
        cancelled: Returns whether a job is cancelled.
        past: Runs parts of back-tests; None: this instance runs none.
        ahead: Fetches pixels from decode pods; None: every part is decoded here, while it is prefilled.
        decoders: Number of decoding processes; None: as many as this process may use cores.
        idle_s: Seconds without a part after which the open recording is closed.
        clock: Unix seconds.
    """

    events = EVENTS
    reasons = REASONS

    def __init__(
        self,
        analyzer: Analyzer,
        sources: Sources,
        *,
        partitions: int,
        model_digest: str,
        cancelled: Callable[[str], bool],
        past: PastParts | None = None,
        ahead: Ahead | None = None,
        decoders: int | None = None,
        idle_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._analyzer, self._ahead = analyzer, ahead
        self._recording = OpenedRecording(sources, decoders, idle_s)
        self._model_digest, self._cancelled, self._clock = model_digest, cancelled, clock
        self._partitions, self._past = partitions, past
        self._gone: set[int] = set()  # partitions revoked since the running part began
        self.config_digest = digest("recordings", 1, model_digest)
        self.shared_settings = {"model": model_digest}

    def load(self, camera: str, stored: StoredCheckpoint | None) -> None:
        """Return None, because parts have no state."""

    def handle(self, state: None, record: Record) -> Result:
        """Answer a part, or write why it has no answer."""
        part = self._part(record)
        pixels = self._pixels(part)
        with self._recording.turn():
            self._gone.clear()
            outcome = self._outcome(part, record.partition, pixels)
        return _result(part, outcome, record, ahead=pixels is not None)

    def rejected(self, state: None, record: Record, reason: DeadLetter) -> Result | None:
        """Write the outcome of a part that becomes a dead letter."""
        try:
            part = self._part(record)
        except BadRecordError:
            return None
        return _result(part, unanswered(part, f"{reason.reason}: {reason.detail}"), record)

    def revoked(self, partition: int) -> None:
        """Stop a running part of this partition, because another worker will answer it."""
        self._gone.add(partition)

    def close(self) -> None:
        """End the decoder processes, and remove local copies."""
        self._recording.close()

    def _part(self, record: Record) -> RecordingPart:
        try:
            part = received(RecordingPart, record)
        except WireError as error:
            raise BadRecordError("bad-part", str(error)) from error
        if part.home >= self._partitions:  # a partition that does not exist would fail the whole transaction
            raise BadRecordError(
                "bad-part", f"home is {part.home}, but there are only {self._partitions} partitions"
            )
        return part

    def _pixels(self, part: RecordingPart) -> U8 | None:
        """Fetch the part's pixels from a decode pod, while the previous part is being answered."""
        if self._ahead is None or part.HasField("backtest"):
            return None
        try:
            self._check(part)
        except _StoppedError:
            return None
        return self._ahead(part)

    def _check(self, part: RecordingPart) -> None:
        if self._cancelled(part.job):
            raise _StoppedError("cancelled")
        if part.HasField("expires") and self._clock() * 1000 > part.expires.ToMilliseconds():
            raise _StoppedError("expired")

    def _outcome(self, part: RecordingPart, partition: int, pixels: U8 | None) -> PartOutcome:
        def check() -> None:
            self._check(part)
            if partition in self._gone:
                raise _StoppedError("another worker took the part over")

        try:
            check()
            try:
                return self._answered(part, check, pixels)
            except SamplesError as error:
                _log.warning(
                    "decoding a part here instead of in a decode pod",
                    job=part.job,
                    part=part.number,
                    reason=str(error),
                )
                return self._answered(part, check, None)
        except _StoppedError as stopped:
            return unanswered(part, str(stopped))
        except (CodecError, SourceError, AnalysisError, RecordingError, JobError) as error:
            self.close()
            _log.warning("a part cannot be read", job=part.job, part=part.number, reason=str(error))
            return unanswered(part, str(error))
        except BaseException:
            self.close()
            raise

    def _answered(self, part: RecordingPart, check: Check, pixels: U8 | None) -> PartOutcome:
        _log.info("answering a part", job=part.job, part=part.number, from_decode_pod=pixels is not None)
        if part.HasField("backtest"):
            return self._backtested(part, check)
        settings = settings_of(part.settings, self._recording.decoders)
        questions = [
            Question(str(place), text, settings.describe) for place, text in enumerate(part.questions)
        ]
        source, reader = self._recording.open(part)
        if part_of(part.span) not in self._analyzer.parts(reader, settings)[1]:
            raise AnalysisError(
                "the recording has no such part: the job may have been planned with another model"
            )
        results, _, _ = self._analyzer.run(
            reader if pixels is None else SampledReader(reader, pixels),
            questions,
            settings,
            parts=[part_of(part.span)],
            progress=lambda _: check(),
        )
        source.check()
        return outcome_of(part, results[0], self._model_digest)

    def _backtested(self, part: RecordingPart, check: Check) -> PartOutcome:
        if self._past is None:
            raise JobError("this service does not run back-tests")
        try:
            past = self._past.run(part.backtest, check)
        except RecordsGoneError as error:
            raise JobError(str(error)) from error
        return PartOutcome(number=part.number, span=part.span, model_digest=self._model_digest, backtest=past)


def _result(part: RecordingPart, outcome: PartOutcome, record: Record, *, ahead: bool = False) -> Result:
    value = RecordingOutcome(job=part.job, part=outcome, place=record.partition).SerializeToString()
    event = "unanswered" if outcome.reason else "answered"
    counts = {event: 1, **({"ahead": 1} if ahead else {})}
    return Result([Output(RECORDING_RESULTS.name, part.job, value, partition=part.home)], counts=counts)
