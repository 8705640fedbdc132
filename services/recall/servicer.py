"""`RecallService`: takes questions and searches; returns progress, text and answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
from prometheus_client import Counter, Histogram

from lookout.errors import LookoutError
from lookout.models import asks_yes_no, check_question
from lookout.models.engines import EngineError
from lookout.past.chapters.service import is_meant
from lookout.past.find import SHARE
from lookout.past.find.clauses import clauses_of
from lookout.past.find.finding import Finder
from lookout.past.find.messages import find_response, region_of
from lookout.past.find.pictures import PictureError
from lookout.past.find.similar import RegionError, similar_spans
from lookout.past.find.spans import PastSpan
from lookout.past.find.types import FindQuestion, Region
from lookout.past.find.unusual import unusual_spans
from lookout.past.memory.past import Chapter
from lookout.past.memory.ranking import CameraPast
from lookout.runtime.observe import Metrics, logs
from lookout.services.recall.asking import Asked, Asker, NothingRememberedError, PastQuestion
from lookout.services.recall.searching import Finders
from lookout.services.recall.settings import RecallSettings
from lookout.structured import named_shares
from lookout.text import question_text
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import (
    DESCRIPTOR,
    AskCost,
    AskProgress,
    AskRequest,
    AskResponse,
    AskSummary,
    AskText,
    CameraAnswer,
    FindRequest,
    FindResponse,
    Moment,
    PictureRegion,
    ScoredSpan,
    SimilarRequest,
    SimilarResponse,
    TimeRange,
    UnusualRequest,
    UnusualResponse,
)
from lookout.wire.ids import CAMERA_ID_BYTES, is_camera_id
from lookout.wire.shares import share_messages

_log = logs.get("recall")
_END = object()
MOST_HITS: Final = 1000
CAMERA_WORDS: Final = (
    f"cameras: give printable ids, or patterns with *, of 1 to {CAMERA_ID_BYTES} bytes in UTF-8"
)
MOST_CLAUSES: Final = 4
MOST_CAMERAS: Final = 1000
"""Most cameras in one question."""
CHEAP_FRAMES: Final = 8
"""Number of frames per camera that the first pass over many cameras reads."""
TOGETHER: Final = 16
"""Number of cameras that the first pass computes together."""


class RecallService(memory_pb2_grpc.RecallServiceServicer):  # type: ignore[misc]
    """Answers questions, one at a time, and searches. Accepts at most `queue` requests at a time, and rejects
    further ones.

    Status codes: INVALID_ARGUMENT: the question or its times are invalid. NOT_FOUND: nothing is remembered of
    that time. RESOURCE_EXHAUSTED: too many questions are waiting. INTERNAL: the model failed. UNAVAILABLE:
    any other error.
    """

    NAME: str = DESCRIPTOR.services_by_name["RecallService"].full_name

    def __init__(self, asker: Asker, settings: RecallSettings, metrics: Metrics, finders: Finders) -> None:
        self._asker, self._settings, self._finders = asker, settings, finders
        self._room = threading.BoundedSemaphore(settings.queue)
        registry = metrics.registry
        self._asks = Counter(
            "lookout_recall_asks",
            "questions and searches about the past, by how they ended",
            ["end"],
            registry=registry,
        )
        for end in ("answered", "nothing", "refused", "failed"):
            self._asks.labels(end)
        self._bytes = Counter(
            "lookout_recall_fetched_bytes", "bytes of chapters read to answer questions", registry=registry
        )
        self._seconds = Histogram(
            "lookout_recall_first_token_seconds",
            "seconds from finding a question's chapters to its first token",
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
            registry=registry,
        )

    def register(self, server: grpc.Server) -> None:
        """Add the service to a server."""
        memory_pb2_grpc.add_RecallServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def Ask(  # noqa: N802
        self, request: AskRequest, context: grpc.ServicerContext
    ) -> Iterator[AskResponse]:
        question = self._question(request, context)
        with self._place(context):
            yield from self._streamed(request, question, context)

    def Find(  # noqa: N802
        self, request: FindRequest, context: grpc.ServicerContext
    ) -> Iterator[FindResponse]:
        question = self._search(request, context)
        with self._place(context), self._finders() as finder:
            for event in finder.find(question, lambda: not context.is_active()):
                yield find_response(event)

    def Unusual(  # noqa: N802
        self, request: UnusualRequest, context: grpc.ServicerContext
    ) -> UnusualResponse:
        with self._place(context), self._finders() as finder:
            pasts, note = _pasts(finder, request, context)
            length_us = finder.windows.settings.window_us
            unusual = unusual_spans(pasts, length_us, *_times(request), _limit(request))
            spans = _scored(finder, [(entry.span, entry.score) for entry in unusual])
        return UnusualResponse(spans=spans, note=note)

    def Similar(  # noqa: N802
        self, request: SimilarRequest, context: grpc.ServicerContext
    ) -> SimilarResponse:
        region = self._region(request.like, context)
        with self._place(context), self._finders() as finder:
            pasts, note = _pasts(finder, request, context)
            since_us, until_us = _times(request)
            similar = similar_spans(
                pasts,
                finder.keys_of(region),
                region,
                finder.windows.settings.window_us,
                since_us=since_us,
                until_us=until_us,
                limit=_limit(request),
            )
            spans = _scored(finder, similar)
        if not any(past.landmarks for past in pasts.values()):
            note = "; ".join(filter(None, [note, "the directory has nothing to compare with yet"]))
        return SimilarResponse(spans=spans, note=note)

    @staticmethod
    def _region(message: PictureRegion, context: grpc.ServicerContext) -> Region:
        try:
            return region_of(message)
        except LookoutError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    @contextmanager
    def _place(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Hold a slot in the queue, count the outcome, and turn errors into gRPC statuses."""
        if not self._room.acquire(blocking=False):
            self._asks.labels("refused").inc()
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "too many questions are waiting: ask again later"
            )
        try:
            yield
            self._asks.labels("answered").inc()
        except PictureError as error:
            self._asks.labels("nothing").inc()
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (NothingRememberedError, RegionError) as error:
            unread = isinstance(error, NothingRememberedError) and error.unread
            self._asks.labels("failed" if unread else "nothing").inc()
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except LookoutError as error:
            self._asks.labels("failed").inc()
            code = grpc.StatusCode.INTERNAL if isinstance(error, EngineError) else grpc.StatusCode.UNAVAILABLE
            context.abort(code, str(error))
        finally:
            self._room.release()

    def _search(self, request: FindRequest, context: grpc.ServicerContext) -> FindQuestion:
        since = request.since_us if request.HasField("since_us") else None
        until = request.until_us if request.HasField("until_us") else None
        threshold = request.threshold if request.HasField("threshold") else 0.5
        share = request.share if request.HasField("share") else SHARE
        cameras = tuple(request.cameras) or ("*",)
        try:
            text = question_text(request.question, LookoutError)
            if self._settings.model_dir is not None:
                for clause in clauses_of(text):
                    check_question(self._settings.model_dir, clause, anyway=request.anyway)
        except LookoutError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        refusal = ""
        if len(clauses_of(text)) > MOST_CLAUSES:
            refusal = f"the question has more than {MOST_CLAUSES} clauses"
        elif not all(map(is_camera_id, cameras)):
            refusal = CAMERA_WORDS
        elif since is not None and until is not None and since >= until:
            refusal = f"the requested time is empty: from {since} to {until}"
        elif not 0 < threshold <= 1 or not 0 < share <= 1:
            refusal = "threshold and share must be above 0 and at most 1"
        elif request.limit > MOST_HITS:
            refusal = f"limit must be at most {MOST_HITS}"
        if refusal:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal)
        return FindQuestion(
            text,
            cameras,
            since,
            until,
            request.limit or 20,
            threshold,
            share,
            exact=request.exact,
            tenants=tuple(request.tenants),
            like=self._region(request.like, context) if request.HasField("like") else None,
        )

    def _question(self, request: AskRequest, context: grpc.ServicerContext) -> PastQuestion:
        settings = self._settings
        try:
            text = question_text(request.question, LookoutError)
        except LookoutError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        write = request.text if request.HasField("text") else not asks_yes_no(text)
        since = request.since_us if request.HasField("since_us") else None
        until = request.until_us if request.HasField("until_us") else None
        refusal = ""
        if not is_camera_id(request.cameras):
            refusal = (
                f"cameras: give a printable id, or a pattern with *, of 1 to {CAMERA_ID_BYTES} bytes in UTF-8"
            )
        elif since is not None and until is not None and since >= until:
            refusal = f"the requested time is empty: from {since} to {until}"
        elif request.words > 512 or request.frames > 4096:
            refusal = "words must be at most 512, and frames at most 4096"
        elif settings.model_dir is not None:
            try:
                check_question(settings.model_dir, text, text=write, anyway=True)
            except LookoutError as error:
                refusal = str(error)
        if refusal:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal)
        words = (request.words or settings.words) if write else 0
        return PastQuestion(text, since, until, words, request.frames or settings.frames)

    def _streamed(
        self, request: AskRequest, question: PastQuestion, context: grpc.ServicerContext
    ) -> Iterator[AskResponse]:
        """Run the question on a separate thread; yield its responses as they are produced."""
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def run() -> None:
            try:
                self._run(request.cameras, question, context, responses)
            except BaseException as error:  # raised again on the caller's thread
                responses.put(error)
            else:
                responses.put(_END)

        thread = threading.Thread(target=run, name="ask", daemon=True)
        thread.start()
        while True:
            response = responses.get()
            if response is _END:
                return
            if isinstance(response, BaseException):
                raise response
            yield response

    def _run(
        self,
        cameras: str,
        question: PastQuestion,
        context: grpc.ServicerContext,
        responses: queue.SimpleQueue[Any],
    ) -> None:
        if "*" in cameras:
            self._many(cameras, question, context, responses)
            return
        responses.put(AskResponse(progress=AskProgress(stage="chapters", camera=cameras)))
        answer = self._asker.ask(
            cameras,
            question,
            on_text=lambda piece: responses.put(AskResponse(text=AskText(camera=cameras, piece=piece))),
        )
        self._note(answer)
        responses.put(AskResponse(answer=answer_message(answer)))
        responses.put(AskResponse(summary=AskSummary(cameras=1, answered=1)))

    def _many(
        self,
        pattern: str,
        question: PastQuestion,
        context: grpc.ServicerContext,
        responses: queue.SimpleQueue[Any],
    ) -> None:
        """Answer about many cameras: ask about all of them with few frames, then about the best ones again
        with all frames.

        Answers are ranked in two groups, because p(yes) is comparable only between equal numbers of frames.
        The first group has the cameras that were asked about with all frames, and those of which the first
        question already read everything. The second group has the other cameras.
        """
        settings = self._settings
        responses.put(AskResponse(progress=AskProgress(stage="chapters", camera=pattern)))
        past = self._asker.find(pattern, question)
        names = sorted(name for name in past if is_meant(name, pattern))
        if not names:
            raise NothingRememberedError(f"cameras {pattern}: nothing is remembered of that time")
        not_asked_reasons = [f"{name}: more than {MOST_CAMERAS} cameras" for name in names[MOST_CAMERAS:]]
        cheap: list[Asked] = []
        full: list[Asked] = []
        brief = replace(question, words=0, frames=CHEAP_FRAMES)
        asked_names = names[:MOST_CAMERAS]
        for first in range(0, len(asked_names), TOGETHER):
            if not context.is_active():
                return
            batch = asked_names[first : first + TOGETHER]
            for number, name in enumerate(batch, first):
                progress = AskProgress(stage="cheap", camera=name, done=number, total=len(asked_names))
                responses.put(AskResponse(progress=progress))
            answers = self._asker.ask_many({name: past[name] for name in batch}, brief)
            for name in batch:
                answer = answers[name]
                if isinstance(answer, NothingRememberedError):
                    not_asked_reasons.append(str(answer))
                elif answer.whole and not question.words:
                    full.append(answer)
                else:
                    cheap.append(replace(answer, cheap=True))
        cheap.sort(key=_rank)
        best, cursory = cheap[: settings.best], cheap[settings.best :]
        for number, answer in enumerate(best):
            if not context.is_active():
                return
            progress = AskProgress(stage="full", camera=answer.camera, done=number, total=len(best))
            responses.put(AskResponse(progress=progress))
            try:
                full.append(self._asker.ask(answer.camera, question))
            except NothingRememberedError as error:
                not_asked_reasons.append(str(error))
        for answer in [*sorted(full, key=_rank), *cursory]:
            self._note(answer)
            responses.put(AskResponse(answer=answer_message(answer)))
        summary = AskSummary(cameras=len(names), answered=len(full), not_asked=not_asked_reasons)
        responses.put(AskResponse(summary=summary))

    def _note(self, asked: Asked) -> None:
        self._bytes.inc(asked.traffic.fetched_bytes)
        self._seconds.observe(asked.answer.cost.first_token_s)


def _pasts(
    finder: Finder, request: UnusualRequest | SimilarRequest, context: grpc.ServicerContext
) -> tuple[dict[str, CameraPast], str]:
    """Return the pasts of the cameras in a request, and a note on what could not be read."""
    cameras = tuple(request.cameras) or ("*",)
    if not all(map(is_camera_id, cameras)):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, CAMERA_WORDS)
    meant = [name for name in cameras if "*" not in name] if request.exact else cameras
    pasts, missing = finder.memory.pasts(meant)
    known = {camera: past for camera, past in pasts.items() if not request.exact or camera in cameras}
    return known, "; ".join(missing)


def _times(request: UnusualRequest | SimilarRequest) -> tuple[int | None, int | None]:
    return (
        request.since_us if request.HasField("since_us") else None,
        request.until_us if request.HasField("until_us") else None,
    )


def _limit(request: UnusualRequest | SimilarRequest) -> int:
    return min(request.limit or 20, MOST_HITS)


def _scored(finder: Finder, spans: Sequence[tuple[PastSpan, float]]) -> list[ScoredSpan]:
    """Convert spans to messages, leaving out spans that contain erased or masked time."""
    return [
        ScoredSpan(camera=span.camera, begin_us=span.begin_us, end_us=span.end_us, score=score)
        for span, score in spans
        if not finder.hidden(span.camera, span.begin_us, span.end_us)
    ]


def _rank(asked: Asked) -> tuple[float, str]:
    """Return the sort key: highest p(yes) first, ties by camera, so that the order is deterministic."""
    return -asked.answer.p_yes, asked.camera


def answer_message(asked: Asked) -> CameraAnswer:
    """Return one camera's answer as a message."""
    answer, cost = asked.answer, asked.answer.cost
    layers = max(1, len(answer.traces))
    message = CameraAnswer(
        camera=asked.camera,
        text=answer.text,
        moments=[_moment(asked, evidence.time_us, evidence.share) for evidence in answer.evidence],
        covered=[TimeRange(begin_us=begin, end_us=end) for begin, end in asked.covered],
        missing=asked.missing,
        cost=AskCost(
            question_tokens=cost.question_tokens,
            memory_tokens=cost.memory_tokens,
            fetched_bytes=asked.traffic.fetched_bytes,
            fetches=asked.traffic.calls,
            cached_ranges=asked.traffic.present,
            flops=cost.flops,
            list_s=asked.list_s,
            first_token_s=cost.first_token_s,
            retrieve_s=cost.retrieve_s,
            move_s=cost.move_s,
            attend_s=cost.attend_s,
            tries=asked.tries,
            round_trips_a_layer=asked.traffic.calls / layers,
        ),
        cheap=asked.cheap,
    )
    if asked.yes_no:
        message.p_yes = answer.p_yes
        message.answers.extend(share_messages(named_shares(answer.question, answer.shares)))
    return message


def _moment(asked: Asked, time_us: int, share: float) -> Moment:
    """Return the message for a frame at a wall time, with its epoch and stream time if its chapter is
    known.
    """
    chapter = next((chapter for chapter in asked.chapters if _shows(chapter, time_us)), None)
    if chapter is None:
        return Moment(time_us=time_us, weight=share)
    return Moment(
        time_us=time_us,
        weight=share,
        epoch=int(chapter.head.about["epoch"]),
        stream_us=time_us - chapter.origin_us,
        chapter=chapter.name,
    )


def _shows(chapter: Chapter, time_us: int) -> bool:
    return bool((chapter.head.times_us + chapter.origin_us == time_us).any())
