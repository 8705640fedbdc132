"""A part becomes its one outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from lookout.analysis import AnalysisError, Analyzer
from lookout.engines import Question
from lookout.errors import BadRecordError
from lookout.files import RecordingReader
from lookout.jobs import (
    JobError,
    OpenSource,
    SourceError,
    Sources,
    outcome_of,
    part_of,
    settings_of,
    unanswered,
)
from lookout.recordings import RecordingError
from lookout.sandbox import open_recording
from lookout.segments import CodecError
from lookout.services.recordings.past import PastParts
from lookout.v1.recordings_pb2 import PartOutcome, RecordingOutcome, RecordingPart
from lookout.wire import RECORDING_RESULTS, WireError, from_bytes
from lookout.worker import DeadLetter, Handler, Output, Record, Result, StoredCheckpoint
from lookout.worker.settings import digest

EVENTS = {
    "answered": "parts answered",
    "unanswered": "parts that could not be read, are cancelled or came too late",
}
_log = structlog.get_logger(__name__)

Check = Callable[[], None]
"""Raises where nobody waits for the part any more."""


class _StoppedError(Exception):
    """Nobody waits for the part any more: why."""


class PartsHandler(Handler[None]):
    """Runs parts, one after the other: a part uses every core, or the GPU.

    Args:
        analyzer: The model.
        sources: Where recordings are read.
        partitions: Of the topic of outcomes.
        model_digest: Of the model.
        cancelled: Whether a job is cancelled.
        past: Runs parts of back-tests; None: there are none.
        decoders: Decoding processes; None: the machine's cores.
        idle_s: Seconds without a part after which the recording of the last one is closed.
        clock: Unix seconds.
    """

    events = EVENTS

    def __init__(
        self,
        analyzer: Analyzer,
        sources: Sources,
        *,
        partitions: int,
        model_digest: str,
        cancelled: Callable[[str], bool],
        past: PastParts | None = None,
        decoders: int | None = None,
        idle_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._analyzer, self._sources, self._decoders = analyzer, sources, decoders
        self._model_digest, self._cancelled, self._clock = model_digest, cancelled, clock
        self._partitions, self._past = partitions, past
        self._turn = threading.Lock()
        self._gone: set[int] = set()  # partitions that were given back since the part began
        self._idle_s, self._idle = idle_s, threading.Timer(idle_s, self._rest)
        self._opened = ExitStack()
        self._reader: tuple[OpenSource, RecordingReader] | None = None
        self.config_digest = digest("recordings", 1, model_digest)
        self.shared_settings = {"model": model_digest}

    def load(self, camera: str, stored: StoredCheckpoint | None) -> None:
        """A part has no state."""

    def handle(self, state: None, record: Record) -> Result:
        """Answer a part, or say why it has no answers."""
        part = self._part(record)
        with self._turn:
            self._idle.cancel()
            self._gone.clear()
            outcome = self._outcome(part, record.partition)
            self._idle = threading.Timer(self._idle_s, self._rest)
            self._idle.daemon = True
            self._idle.start()
        return _result(part, outcome)

    def rejected(self, state: None, record: Record, reason: DeadLetter) -> Result | None:
        """A part that becomes a dead letter has its outcome too."""
        try:
            part = self._part(record)
        except BadRecordError:
            return None
        return _result(part, unanswered(part, f"{reason.reason}: {reason.detail}"))

    def revoked(self, partition: int) -> None:
        """Another worker answers its parts."""
        self._gone.add(partition)

    def close(self) -> None:
        """End the decoder processes, and remove what was fetched."""
        self._idle.cancel()
        self._reader = None
        self._opened.close()

    def _rest(self) -> None:
        """No part came for a while."""
        with self._turn:
            self.close()

    def _part(self, record: Record) -> RecordingPart:
        try:
            part = from_bytes(record.value, RecordingPart)
        except WireError as error:
            raise BadRecordError("bad-part", str(error)) from error
        if part.home >= self._partitions:  # Kafka would refuse the outcome, and with it those of others
            raise BadRecordError("bad-part", f"home {part.home}: there are {self._partitions} partitions")
        return part

    def _outcome(self, part: RecordingPart, partition: int) -> PartOutcome:
        def check() -> None:
            if self._cancelled(part.job):
                raise _StoppedError("cancelled")
            if part.HasField("expires") and self._clock() * 1000 > part.expires.ToMilliseconds():
                raise _StoppedError("expired")
            if partition in self._gone:
                raise _StoppedError("given back")

        try:
            check()
            return self._answered(part, check)
        except _StoppedError as stopped:
            return unanswered(part, str(stopped))
        except (CodecError, SourceError, AnalysisError, RecordingError, JobError) as error:
            self.close()
            _log.warning("a part cannot be read", job=part.job, part=part.number, reason=str(error))
            return unanswered(part, str(error))
        except BaseException:
            self.close()
            raise

    def _answered(self, part: RecordingPart, check: Check) -> PartOutcome:
        _log.info("a part begins", job=part.job, part=part.number)
        if part.HasField("backtest"):
            return self._backtested(part, check)
        settings = settings_of(part.settings, self._decoders)
        questions = [
            Question(str(place), text, settings.describe) for place, text in enumerate(part.questions)
        ]
        source, reader = self._open(part)
        if part_of(part.span) not in self._analyzer.parts(reader, settings)[1]:
            raise AnalysisError("the recording has no such part: was it planned with another model?")
        results, _, _ = self._analyzer.run(
            reader, questions, settings, parts=[part_of(part.span)], progress=lambda _: check()
        )
        source.check()
        return outcome_of(part, results[0], self._model_digest)

    def _backtested(self, part: RecordingPart, check: Check) -> PartOutcome:
        if self._past is None:
            raise JobError("this service runs no back-tests")
        past = self._past.run(part.backtest, check)
        return PartOutcome(number=part.number, span=part.span, model_digest=self._model_digest, backtest=past)

    def _open(self, part: RecordingPart) -> tuple[OpenSource, RecordingReader]:
        """A part's recording; that of the part before stays open, for its neighbours."""
        if self._reader is not None:
            source, reader = self._reader
            if (source.uri, source.mark) == (part.uri, part.mark):
                source.check()
                return source, reader
            self.close()
        source = self._opened.enter_context(self._sources.open(part.uri, part.mark))
        reader = self._opened.enter_context(open_recording(source.data, sandbox=True, workers=self._decoders))
        self._reader = source, reader
        return source, reader


def _result(part: RecordingPart, outcome: PartOutcome) -> Result:
    value = RecordingOutcome(job=part.job, part=outcome).SerializeToString()
    event = "unanswered" if outcome.reason else "answered"
    return Result([Output(RECORDING_RESULTS.name, part.job, value, partition=part.home)], counts={event: 1})
