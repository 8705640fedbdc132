"""Loads a model and answers questions about recordings with it."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn, Self

from lookout import models
from lookout.models.device import check_device
from lookout.models.engines import Question
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.families import load_layout, load_tower
from lookout.models.vision import Tower
from lookout.models.windows import Layout
from lookout.recordings import GroupPlanner, Mode, Timings, run_groups
from lookout.recordings.analysis.cutting import cut_parts
from lookout.recordings.analysis.results import Part, PartResult, Progress
from lookout.recordings.analysis.run import Model, PartsRun
from lookout.recordings.analysis.settings import AnalysisSettings
from lookout.recordings.analysis.sizing import part_frames, planner
from lookout.video.files import Gap, RecordingReader, Sampling
from lookout.video.files.recording import gaps_of
from lookout.video.segments.sampling import Pick


class Analyzer:
    """A model that analyses recordings, one call at a time. The model is loaded when it is first needed.

    At the end of a `with` block, the model is freed.

    Args:
        model: Folder of a checkpoint; None: the tiny model that comes with Lookout.
        device: Where the model runs, such as "cpu" or "cuda:1".
        dtype: Data type of weights and KV; None: the default for the device.

    Raises:
        LookoutError: The model or the device does not exist. A model that cannot be loaded raises an error
            only when it is first needed.
    """

    def __init__(
        self, model: Path | str | None = None, *, device: str = "cpu", dtype: str | None = None
    ) -> None:
        check_device(device)
        self.folder = models.find_model(model)
        self._device, self._dtype = device, dtype

    def load(self) -> None:
        """Load the model now instead of when it is first needed."""
        self.tower, self.engine  # noqa: B018 - properties that load

    @cached_property
    def tower(self) -> Tower:
        """The vision tower; loaded on first use."""
        return load_tower(self.folder, device=self._device, dtype=self._dtype)

    @cached_property
    def layout(self) -> Layout:
        """The model's prompt layout; reading it loads no weights."""
        return load_layout(self.folder)

    @cached_property
    def engine(self) -> TransformersEngine:
        """The language model; loaded on first use."""
        return load_engine(self.folder, self._device, self._dtype, layout=self.layout)

    def close(self) -> None:
        """Free the model. It is loaded again when it is next needed."""
        self.__dict__.pop("tower", None)
        engine = self.__dict__.pop("engine", None)
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Analyzer holds a loaded model and cannot be pickled: create an Analyzer in every process"
        )

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def digest(self) -> str:
        """A digest of the checkpoint: of its configuration, and of the sizes and modification times of its
        weight files."""
        state = hashlib.blake2b((self.folder / "config.json").read_bytes(), digest_size=12)
        for path in sorted(self.folder.glob("*.safetensors")):
            facts = path.stat()
            state.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}".encode())
        return state.hexdigest()

    def part_frames(self, settings: AnalysisSettings) -> int:
        """Return the number of samples of a part; see `lookout.recordings.analysis.sizing.part_frames`.

        Raises:
            AnalysisError: The model has too few positions for one frame.
        """
        return part_frames(self.folder, self.layout, settings)

    def planner(self, settings: AnalysisSettings, frames: int = 9999) -> GroupPlanner:
        """Return a planner for parts of at most `frames` frames."""
        return planner(self.layout, settings, frames)

    def parts(self, reader: RecordingReader, settings: AnalysisSettings) -> tuple[list[Pick], list[Part]]:
        """Return the samples of a recording, and the parts into which they are cut.

        Raises:
            AnalysisError: The range has no sample.
        """
        return cut_parts(reader, settings, self.part_frames(settings))

    def run(
        self,
        reader: RecordingReader,
        questions: Sequence[Question],
        settings: AnalysisSettings | None = None,
        *,
        parts: Sequence[Part] | None = None,
        on_part: Callable[[PartResult], None] | None = None,
        progress: Callable[[Progress], None] | None = None,
        begun: float | None = None,
    ) -> tuple[list[PartResult], Timings, Sampling]:
        """Answer all questions for some parts of a recording.

        Args:
            reader: The recording.
            questions: Yes/no questions.
            settings: How to analyse the recording; None: the defaults.
            parts: Some of `self.parts(...)`, in order; None: all.
            on_part: Called with every part's result as soon as the part is answered.
            progress: Called after every group.
            begun: `time.perf_counter()` before the recording was opened, for `Timings.start_s`; None: the
                time of this call.

        Returns:
            The parts' results; the timings; and the sampling, which has counts of its work (`work`).
        """
        settings = settings or AnalysisSettings()
        begun = time.perf_counter() if begun is None else begun
        picks, all_parts = self.parts(reader, settings)
        selection = all_parts if parts is None else list(parts)
        sample_picks = [pick for part in selection for pick in picks[part.first : part.stop]]
        sampling = reader.sample(
            picks=sample_picks,
            size=(self.tower.grid.height, self.tower.grid.width),
            fit=settings.fit,
            threads=settings.threads,
            lookahead=max(settings.prefill.group_frames * (1 + settings.waiting), 8),
        )
        longest = max((part.stop - part.first for part in selection), default=1)
        planner = self.planner(settings, longest)
        model = Model(self.tower, self.engine)

        def gaps(part: Part) -> tuple[Gap, ...]:
            return gaps_of(picks[part.first : part.stop], sampling.lost, round(part.end_s * 1e6))

        state = PartsRun(model, planner, questions, settings, selection, gaps, on_part, progress)
        start = time.perf_counter() - begun
        with sampling:
            _, timings = run_groups(
                state.groups(sampling),
                state.take,
                mode=settings.mode,
                waiting=settings.waiting,
                start_s=start,
                busy=(lambda: sampling.busy_s) if settings.mode is Mode.OVERLAPPED else None,
            )
        return state.results, dataclasses.replace(timings, answer_s=state.answer_s), sampling
