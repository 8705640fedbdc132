"""What one question costs beside the stock model's `generate`: a part of `make bench-recordings`.

23 seconds at two samples a second, three parts; one thread, CPU seconds. The stock model answers each part
and question with one call, on the frames of the same decoder. Rounds take turns. Ratios are given with and
without the time of decoding on the stock's side; ours always decodes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from bench.recordings_hour import asked
from bench.results import Results
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.recordings.analysis import AnalysisSettings, Analyzer, analyze
from lookout.recordings.analysis.cutting import cut_parts
from lookout.video.files import VideoReader

SECONDS: Final = 23
QUESTIONS: Final = tuple(DEMO_QUESTIONS.values())[:3]
SETTINGS: Final = AnalysisSettings(fps=2.0, threads=1)


def once(results: Results, path: Path, rounds: int) -> object:
    """`measure`, unless it was measured."""
    if "question" not in results:
        results.add("question", measure(path, rounds))
    return results.found["question"]


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """CPU seconds by the stock's, for one question and for three.

    Args:
        path: The recording.
        rounds: Of each way; one more warms up.
    """
    with Analyzer(TINY) as analyzer:
        stock = Stock(analyzer, path)
        ways: dict[str, Callable[[], object]] = {"decode": stock.decode}
        for count in (1, len(QUESTIONS)):
            ways[f"ours {count}"] = lambda count=count: _ours(path, analyzer, QUESTIONS[:count])  # type: ignore[misc]
            ways[f"stock {count}"] = lambda count=count: stock.answer(QUESTIONS[:count])  # type: ignore[misc]
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, way in ways.items():
                begun = time.process_time()
                way()
                spent[name].append(time.process_time() - begun)
    out = {}
    for count in (1, len(QUESTIONS)):
        names = f"ours {count}", f"stock {count}", "decode"
        rows = list(zip(*(spent[name][1:] for name in names), strict=True))
        out[f"questions {count}"] = {
            "over_generate": _spread([ours / stock for ours, stock, _ in rows]),
            "over_decode_and_generate": _spread([ours / (stock + decode) for ours, stock, decode in rows]),
        }
    return out


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    """Median, least and largest."""
    values = {"median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios)}
    return {name: round(value, 2) for name, value in values.items()}


def _ours(path: Path, analyzer: Analyzer, questions: Sequence[str]) -> None:
    analyze(path, questions, analyzer=analyzer, settings=SETTINGS)


class Stock:
    """The stock model and processor of the checkpoint.

    Args:
        analyzer: Says where parts begin.
        path: The recording.
    """

    def __init__(self, analyzer: Analyzer, path: Path) -> None:
        self._path = path
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self._processor = AutoProcessor.from_pretrained(TINY)
        self._model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32).eval()
        side = self._processor.video_processor.size
        self._size = side["height"], side["width"]
        with VideoReader(path) as reader:
            self._picks, self._parts = cut_parts(reader, SETTINGS, analyzer.part_frames(SETTINGS))
        self._frames = self.decode()

    def decode(self) -> torch.Tensor:
        """The samples, uint8 [n, 3, height, width]."""
        with VideoReader(self._path) as reader:
            indices = [pick.index for pick in self._picks]
            pixels = reader.read(indices=indices, size=self._size, threads=1).pixels
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)

    def answer(self, questions: Sequence[str]) -> None:
        """Ask each part each question."""
        for part in self._parts:
            for question in questions:
                inputs = self._processor(
                    text=[asked(self._processor, question)],
                    videos=[self._frames[part.first : part.stop]],
                    return_tensors="pt",
                    do_sample_frames=False,
                )
                with torch.inference_mode():
                    self._model.generate(**inputs, max_new_tokens=1, do_sample=False)
