"""Gives searches access to the fleet's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from lookout.models.engines.transformers.memory.queries import question_queries
from lookout.past.chapters.landmarks import LandmarkReader
from lookout.past.chapters.reading import Resolved
from lookout.past.find.finding import Finder, SpanAnswer
from lookout.past.find.spans import PastSpan
from lookout.past.memory.ranking import CameraPast, KeySpace
from lookout.runtime.store import DirectoryDownError
from lookout.services.recall.asking import Asked, Asker, NothingRememberedError, PastQuestion

Finders = Callable[[], AbstractContextManager[Finder]]
"""Opens a finder for one search."""


@dataclass(slots=True)
class FleetMemory:
    """The fleet's memory for one search; implements `lookout.past.find.finding.Memory`.

    Attributes:
        asker: Reads chapters.
        landmarks: Reads landmarks from Redis; None: Redis is not used.
    """

    asker: Asker
    landmarks: LandmarkReader | None
    _resolved: dict[str, Resolved] = field(default_factory=dict)
    _space: KeySpace | None = None

    def pasts(self, cameras: Sequence[str]) -> tuple[dict[str, CameraPast], list[str]]:
        """Return the pasts of matching cameras, and notes on what is missing. Redis is asked first; the
        holders are asked only if Redis knows none of these cameras.
        """
        reasons: list[str] = []
        if self.landmarks is not None:
            try:
                remembered = self.landmarks.pasts(cameras)
                if remembered.cameras:
                    self._space = remembered.space
                    return remembered.cameras, reasons
            except DirectoryDownError as error:
                reasons.append(f"spans were searched newest first instead of by rank: {error}")
        for pattern in cameras:
            self._resolved |= self.asker.find(pattern, PastQuestion(""))
        pasts = {
            camera: CameraPast(
                [
                    (int(times[0]) + chapter.origin_us, int(times[-1]) + chapter.origin_us)
                    for chapter in resolved.chapters
                    if len(times := chapter.head.times_us)
                ]
            )
            for camera, resolved in self._resolved.items()
        }
        missing = {
            f"camera {camera}: {reason}"
            for camera, resolved in self._resolved.items()
            for reason in resolved.missing
        }
        return {camera: past for camera, past in pasts.items() if past.chapters}, [
            *reasons,
            *sorted(missing),
        ]

    def queries(self, question: str) -> torch.Tensor:
        """Return the question's query vectors, in the space in which `pasts` returned its landmarks."""
        queries = question_queries(self.asker.engine, question)
        return queries if self._space is None else self._space.queries(queries)

    def compared(self, keys: torch.Tensor) -> torch.Tensor:
        """Convert keys to the space in which `pasts` returned its landmarks, so that the two can be
        compared.
        """
        return keys if self._space is None else self._space.keys(keys)

    def ask(self, spans: Sequence[PastSpan], question: str) -> list[SpanAnswer]:
        """Answer the question about each span separately, but in one pass through the layers."""
        answers = self.asker.ask_each(
            [
                (self._chapters(span.camera), PastQuestion(question, span.begin_us, span.end_us))
                for span in spans
            ]
        )
        for span, answer in zip(spans, answers, strict=True):
            # Drop the chapters, so that they are looked up again for further spans, without holders that are
            # gone.
            chapters = self._resolved.get(span.camera)
            if isinstance(answer, NothingRememberedError) and chapters is not None and chapters.chapters:
                del self._resolved[span.camera]
        return [_span_answer(answer) for answer in answers]

    def _chapters(self, camera: str) -> Resolved:
        if camera not in self._resolved:
            chapters = self.asker.find(camera, PastQuestion(""))
            self._resolved[camera] = chapters.get(camera, Resolved(camera))
        return self._resolved[camera]


def _span_answer(answer: Asked | NothingRememberedError) -> SpanAnswer:
    if isinstance(answer, NothingRememberedError):
        return SpanAnswer(missing=str(answer))
    cost = answer.answer.cost
    return SpanAnswer(answer.answer.p_yes, cost.flops, answer.traffic.fetched_bytes)
