"""Answers questions from the chapters of one or many cameras; if a chapter is lost meanwhile, tries again
without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from lookout.models import asks_yes_no
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.memory import MemoryAnswer, ask, ask_many
from lookout.past.chapters.reading import ChapterSources, Resolved
from lookout.past.erasures import Fence
from lookout.past.memory import (
    Chapter,
    HistoryError,
    LostChapterError,
    Past,
    Predictor,
    RangeCache,
    RetrievalSettings,
    Traffic,
)
from lookout.past.memory.past import covered_ranges
from lookout.rules.masks import Masks

log = structlog.get_logger(__name__)
TRIES = 4
"""Most attempts for one question: the first with every chapter, later ones without lost chapters."""


class NothingRememberedError(HistoryError):
    """No readable chapter has a frame of the requested time; the message says what is missing.

    Attributes:
        unread: Whether some chapters or holders could not be read.
    """

    def __init__(self, message: str, *, unread: bool = False) -> None:
        super().__init__(message)
        self.unread = unread


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """A question about the past.

    Times are Unix microseconds; None: no bound. `words` is the maximum number of tokens of a text answer; 0:
    no text. `frames` is the number of frames that each layer reads.
    """

    text: str
    since_us: int | None = None
    until_us: int | None = None
    words: int = 0
    frames: int = 64


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The answer for one camera.

    Attributes:
        camera: The camera's id.
        answer: The answer from the camera's chapters; times are Unix microseconds.
        chapters: The chapters that were read.
        covered: The ranges of frame times that were read, within the requested time.
        missing: Descriptions of chapters that exist but could not be read.
        traffic: Bytes and calls that fetching chapters took.
        list_s: Seconds that listing the chapters took.
        tries: Number of attempts; more than one if chapters were lost.
        budget: Maximum number of tokens that each layer could read.
        cheap: Whether the camera was asked with a small budget only.
    """

    camera: str
    answer: MemoryAnswer
    chapters: tuple[Chapter, ...]
    covered: tuple[tuple[int, int], ...]
    missing: tuple[str, ...]
    traffic: Traffic
    list_s: float
    tries: int
    budget: int
    cheap: bool = False

    @property
    def whole(self) -> bool:
        """Whether every token of the requested time was read, so that a larger budget would read no more."""
        return all(trace.tokens < self.budget for trace in self.answer.traces)

    @property
    def yes_no(self) -> bool:
        """Whether the question is a yes/no question."""
        return asks_yes_no(self.answer.question)


class Asker:
    """Answers questions one at a time, since they share the model.

    Args:
        engine: The engine with the model.
        sources: Finds and fetches chapters.
        model_digest: The model's digest; chapters of other models are reported as missing.
        cache_bytes: Maximum bytes of chapters cached in memory.
        retrieval: Retrieval budgets. The number of frames comes from each question instead.
        foresee: Whether to predict and prefetch what the next layer reads.
        fence: The erasures in force; a chapter that still contains erased frames is not read.
        masks: The privacy masks; a chapter with frames from before the camera's mask is not read.
        clock: Seconds.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        sources: ChapterSources,
        *,
        model_digest: str = "",
        cache_bytes: int = 512 << 20,
        retrieval: RetrievalSettings | None = None,
        foresee: bool = True,
        fence: Fence | None = None,
        masks: Masks | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._sources, self._model_digest = engine, sources, model_digest
        self._retrieval = retrieval or RetrievalSettings()
        self._predictor = Predictor.RESIDUAL if foresee else Predictor.NONE
        self._clock, self._fence, self._masks = clock, fence or Fence(), masks or Masks()
        self._turn = threading.Lock()
        self.cache = RangeCache(_unbound, cache_bytes)

    def find(self, cameras: str, question: PastQuestion) -> dict[str, Resolved]:
        """Find the chapters of a camera, or of all cameras that match a pattern, by camera."""
        past = self._sources.find(cameras, question.since_us, question.until_us, self._model_digest)
        for camera, resolved in past.items():
            for chapter, cause in self._erased(camera, resolved.chapters):
                resolved.lose(chapter.name, cause)
        return past

    def _erased(self, camera: str, chapters: Sequence[Chapter]) -> list[tuple[Chapter, str]]:
        """Return the chapters that contain frames erased or masked since, each with the reason not to read
        it.
        """
        out: dict[str, tuple[Chapter, str]] = {}
        hidden_us = self._masks.since_us(camera)
        for chapter in chapters:
            if hidden_us and chapter.holds(0, hidden_us):
                out[chapter.name] = chapter, "it was stored before the camera's privacy mask was set"
        for erasure in self._fence.of(camera):
            for chapter in chapters:
                if chapter.holds(erasure.begin_us, erasure.end_us):
                    cause = f"erasure {erasure.id} has not been carried out there yet"
                    out.setdefault(chapter.name, (chapter, cause))
        return list(out.values())

    @property
    def engine(self) -> TransformersEngine:
        """The engine with the model."""
        return self._engine

    @property
    def model_digest(self) -> str:
        """The digest of the model whose chapters are read."""
        return self._model_digest

    def erase(self, camera: str) -> int:
        """Remove a camera's chapters from the cache, once the running question has ended.

        Returns:
            The number of removed ranges.
        """
        with self._turn:
            return self.cache.forget_camera(camera)

    def ask(
        self,
        camera: str,
        question: PastQuestion,
        *,
        resolved: Resolved | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Asked:
        """Answer a question about a camera's past.

        Args:
            camera: The camera's id.
            question: The question.
            resolved: The camera's chapters, if already found; None: find them.
            on_text: Called with each piece of text; a retry does not repeat pieces.

        Raises:
            NothingRememberedError: No chapter has a frame of that time, or no such chapter could be read.
            LookoutError: The question cannot be answered.
        """
        lost: dict[str, str] = {}
        streamed = 0

        def tell(piece: str) -> None:
            nonlocal streamed
            streamed += len(piece)
            if on_text is not None:
                on_text(piece)

        begun = self._clock()
        for attempt in range(TRIES):
            if resolved is None:
                resolved = self.find(camera, question).get(camera, Resolved(camera))
            for name, cause in lost.items():
                if attempt > 1 or not any(chapter.name == name for chapter in resolved.chapters):
                    resolved.lose(name, cause)
            list_s = self._clock() - begun
            try:
                # Streamed text cannot be withdrawn, so a further attempt must not stream again.
                answer = self._once(camera, question, resolved, None if streamed else tell)
            except LostChapterError as error:
                log.warning("a chapter was lost during a question", chapter=error.chapter, error=str(error))
                lost[error.chapter] = str(error)
                resolved = None
                continue
            return replace(answer, list_s=list_s, tries=attempt + 1)
        raise NothingRememberedError(f"camera {camera}: {'; '.join(lost.values())}", unread=True)

    def _once(
        self,
        camera: str,
        question: PastQuestion,
        resolved: Resolved,
        on_text: Callable[[str], None] | None,
    ) -> Asked:
        past = self._past(camera, question, resolved)
        with self._turn:
            self._check_erased(camera, past)
            try:
                answer = ask(
                    self._engine,
                    past,
                    question.text,
                    predictor=self._predictor,
                    since_us=question.since_us,
                    until_us=question.until_us,
                    describe=question.words,
                    on_text=on_text,
                )
            except LostChapterError:
                raise
            except HistoryError as error:
                raise NothingRememberedError(f"camera {camera}: {error}") from error
        return _asked(camera, question, resolved, past, answer)

    def _past(self, camera: str, question: PastQuestion, resolved: Resolved) -> Past:
        """Open a camera's past for a question.

        Raises:
            NothingRememberedError: No chapter has a frame of that time.
            LostChapterError: A chapter cannot be read.
        """
        try:
            return Past(
                resolved.chapters,
                self.cache,
                replace(self._retrieval, frames=question.frames, representatives=False),
                fetch=self._sources.fetch(resolved),
                since_us=question.since_us,
                until_us=question.until_us,
            )
        except LostChapterError:
            raise
        except HistoryError as error:
            reasons = "; ".join([str(error), *resolved.missing])
            unread = bool(resolved.missing)
            raise NothingRememberedError(f"camera {camera}: {reasons}", unread=unread) from error

    def _check_erased(self, camera: str, past: Past) -> None:
        """Check that nothing was erased or masked while the question was waiting.

        Raises:
            LostChapterError: A chapter contains frames that were erased or masked.
        """
        for chapter, cause in self._erased(camera, past.chapters):
            raise LostChapterError(chapter.name, cause)

    def ask_many(
        self, cameras: Mapping[str, Resolved], question: PastQuestion
    ) -> dict[str, Asked | NothingRememberedError]:
        """Answer about several cameras in one pass, by camera; p(yes) equals that of `ask` up to rounding.

        If a camera's chapter is lost meanwhile, this camera is asked again separately.
        """
        answers = self.ask_each([(resolved, question) for resolved in cameras.values()])
        return dict(zip(cameras, answers, strict=True))

    def ask_each(
        self, questions: Sequence[tuple[Resolved, PastQuestion]]
    ) -> list[Asked | NothingRememberedError]:
        """Answer as `ask_many` does, but with a separate time range for each camera. All are asked the first
        question's text.
        """
        out: dict[int, Asked | NothingRememberedError] = {}
        pasts: dict[int, Past] = {}
        with self._turn:
            for number, (resolved, question) in enumerate(questions):
                try:
                    past = self._past(resolved.camera, question, resolved)
                    self._check_erased(resolved.camera, past)
                    pasts[number] = past
                except NothingRememberedError as error:
                    out[number] = error
                except LostChapterError:
                    continue  # asked separately below
            text = questions[0][1].text if questions else ""
            answers = ask_many(self._engine, list(pasts.values()), text)
        for (number, past), answer in zip(pasts.items(), answers, strict=True):
            if not isinstance(answer, HistoryError):
                resolved, question = questions[number]
                out[number] = _asked(resolved.camera, question, resolved, past, answer)
        for number, (resolved, question) in enumerate(questions):
            if number not in out:
                try:
                    out[number] = self.ask(resolved.camera, question)
                except NothingRememberedError as error:
                    out[number] = error
        return [out[number] for number in range(len(questions))]


def _asked(
    camera: str, question: PastQuestion, resolved: Resolved, past: Past, answer: MemoryAnswer
) -> Asked:
    joint_us = _joint_us(past)
    return Asked(
        camera=camera,
        answer=answer,
        chapters=tuple(past.chapters),
        covered=tuple(covered_ranges(past.chapters, question.since_us, question.until_us, joint_us)),
        missing=tuple(resolved.missing),
        traffic=past.traffic,
        list_s=0.0,
        tries=1,
        budget=past.budget,
    )


def _joint_us(past: Past) -> int:
    """Return the longest distance in microseconds between two frames of one covered range: a stride, but at
    least 1 s. A missing block therefore separates two ranges.
    """
    strides = [int(chapter.head.about.get("stride_us", 0)) for chapter in past.chapters]
    return max(1_000_000, *strides)


def _unbound(_requests: object) -> list[bytes]:
    raise HistoryError("this cache can only be read through a question's chapters")
