"""Questions about a recording, answered much faster than it plays (QuickVideo as a whole).

A recording is cut into parts of as many frames as the model reads at once. A part is prefilled group by group
while later frames are decoded, and every question is asked at its end: any number of questions cost one
prefill. Parts are independent and plain data, so a job is the same call with some of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lookout import models
from lookout.codec import (
    Basis,
    CodecError,
    FileFrame,
    Fit,
    Gap,
    Reason,
    RecordingReader,
    Sampling,
    Source,
    open_recording,
)
from lookout.codec.table import Pick
from lookout.engines import Question
from lookout.engines.transformers import TransformersEngine, load_engine
from lookout.engines.transformers.prefill import GroupPrefill, RecordingAnswer
from lookout.errors import LookoutError
from lookout.pruning import Carry, PrunePolicy, Sample
from lookout.recordings import GroupPlanner, Mode, PrefillSettings, Score, Timings, run_groups
from lookout.strides import EncodedStrides, StrideFrame, encode_strides
from lookout.vision import Tower, load_tower

QUESTION_ROOM = 512
"""Positions kept free for a question and its answer."""
PART_FRAMES = 768
"""Samples of a part at most, unless more are asked for: what Qwen's own processors read at once."""


class AnalysisError(LookoutError, ValueError):
    """A request that makes no sense."""


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """How a recording is analysed: plain data.

    Attributes:
        fps: Samples a second.
        start_s: Begin of the time range, in seconds since the first frame.
        end_s: End of the time range, excluded; None: to the end.
        prefill: Groups, and which KV entries stay.
        part_frames: Samples of a part; None: as many as the model was trained for, or can count, but no more
            than `PART_FRAMES`.
        prune: Encode only the patches that changed since they were last encoded; False: all.
        stride_frames: With `prune`, every so many samples one is encoded whole.
        mode: How decoding and prefill share the time.
        waiting: Groups that may wait for the prefill.
        threads: Decoding threads; None: the machine's cores.
        fit: How a picture meets the model's input.
        evidence: So many times are named per answer.
        describe: Up to so many tokens of text for every answer that is Yes.
    """

    fps: float = 2.0
    start_s: float = 0.0
    end_s: float | None = None
    prefill: PrefillSettings = field(default_factory=PrefillSettings)
    part_frames: int | None = None
    prune: bool = False
    stride_frames: int = 4
    mode: Mode = Mode.OVERLAPPED
    waiting: int = 2
    threads: int | None = None
    fit: Fit = Fit.STRETCH
    evidence: int = 3
    describe: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fps <= 1000:
            raise AnalysisError(f"fps={self.fps:g} must be above 0 and at most 1000")
        if self.start_s < 0 or (self.end_s is not None and self.end_s <= self.start_s):
            raise AnalysisError(f"the range from {self.start_s:g} s to {self.end_s} s is empty")
        if min(self.part_frames or 1, self.stride_frames, self.waiting) < 1:
            raise AnalysisError("part_frames, stride_frames and waiting must be at least 1")


@dataclass(frozen=True, slots=True)
class Part:
    """Samples [first, stop) of a recording, prefilled and asked alone."""

    number: int
    first: int
    stop: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """One question's answer for one part. `seen_s`: (time, share of the answer's attention), best first."""

    question: str
    p_yes: float
    text: str | None = None
    seen_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PartResult:
    """One part as it came out.

    Attributes:
        part: Which.
        frames: Samples that were decoded.
        answers: In the order of the questions.
        rows: Prompt rows prefilled.
        kept: Entries that stayed, per layer and KV head.
        kv_bytes: KV at the end of the part.
        flops: FLOPs of prefill and questions, by stage.
        tokens: Visual tokens that were encoded.
        tokens_total: Visual tokens of whole frames.
    """

    part: Part
    frames: int
    answers: tuple[PartAnswer, ...]
    rows: int = 0
    kept: int = 0
    kv_bytes: int = 0
    flops: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    tokens_total: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PartResult:
        """From JSON."""
        answers = tuple(
            PartAnswer(a["question"], a["p_yes"], a["text"], tuple((t, s) for t, s in a["seen_s"]))
            for a in data["answers"]
        )
        return cls(**{**data, "part": Part(**data["part"]), "answers": answers})


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question about the whole recording.

    Attributes:
        question: The question.
        p_yes: The largest probability of any part.
        part: The part it comes from.
        start_s: That part's begin.
        end_s: That part's end.
        seen_s: The times it rests on, with their share of the answer's attention.
        yes_s: Ranges of parts whose probability is above a half.
        text: A description, where asked for and the answer is Yes.
    """

    question: str
    p_yes: float
    part: int
    start_s: float
    end_s: float
    seen_s: tuple[tuple[float, float], ...]
    yes_s: tuple[tuple[float, float], ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything about a recording that was asked.

    Attributes:
        source: Path or URL.
        seconds: Length of the recording.
        frames: Frames of the recording.
        questions: What was asked.
        answers: In the order of the questions.
        parts: Every part, in order.
        gaps: What could not be decoded.
        timings: t_dec, t_prefill, t_total, Equation 3's bound and the efficiency of this run; None where no
            part was left to do.
        work: What decoding did: packets, frames decoded, and so on.
        wall_s: Seconds of this run.
        complete: False where the run was stopped.
    """

    source: str
    seconds: float
    frames: int
    questions: tuple[str, ...]
    answers: tuple[Answer, ...]
    parts: tuple[PartResult, ...]
    gaps: tuple[Gap, ...] = ()
    timings: Timings | None = None
    work: Mapping[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        out = dataclasses.asdict(self)
        out["timings"] = None if self.timings is None else self.timings.summary()
        out["parts"] = [part.to_dict() for part in self.parts]
        return out


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `decoded`, `prefilled`: samples; `samples`, `parts`: in all; `done`: parts."""

    decoded: int
    prefilled: int
    done: int
    samples: int
    parts: int


@dataclass(slots=True, eq=False)
class _Group:
    """Frames on their way from the decoder to the prefill; `ends`: the last group of its part."""

    part: Part
    frames: list[FileFrame]
    ends: bool


@dataclass(slots=True, eq=False)
class _Open:
    """The part that is being prefilled."""

    part: Part
    prefill: GroupPrefill
    carry: Carry | None = None
    frames: int = 0
    tokens: int = 0
    tokens_total: int = 0
    vision_flops: int = 0
    prefill_flops: int = 0


class Analyzer:
    """A model, ready to analyse recordings. Calls take turns.

    Args:
        model: Folder of a checkpoint; None: the tiny model that comes with Lookout.
        device: Where it runs.

    Raises:
        LookoutError: The model does not load.
    """

    def __init__(self, model: Path | str | None = None, *, device: str = "cpu") -> None:
        self.folder = models.find_model(model)
        self.tower: Tower = load_tower(self.folder, device=device)
        self.engine: TransformersEngine = load_engine(self.folder, device)

    def close(self) -> None:
        """Free the model."""
        self.engine.close()

    @property
    def digest(self) -> str:
        """Names the checkpoint: its configuration, and the size and time of its files."""
        state = hashlib.blake2b((self.folder / "config.json").read_bytes(), digest_size=12)
        for path in sorted(self.folder.glob("*.safetensors")):
            found = path.stat()
            state.update(f"{path.name} {found.st_size} {found.st_mtime_ns}".encode())
        return state.hexdigest()

    def part_frames(self, settings: AnalysisSettings) -> int:
        """Samples of a part: what the settings say, what the model was trained for, or what it can count.

        Raises:
            AnalysisError: The model cannot count one frame.
        """
        if settings.part_frames is not None:
            return settings.part_frames
        trained = trained_frames(self.folder)
        if trained is not None:
            return trained
        rule, layout = self.engine.layout.positions, self.engine.layout
        room = rule.limit - len(layout.prefix) - QUESTION_ROOM
        planner = self.planner(settings)
        rows = planner.rows(1, self.tower.grid.tokens) - len(layout.prefix)
        each = rows / self.tower.grid.temporal
        if rule.kind == "qwen2_5_vl":
            each = max(rule.ticks_per_second / settings.fps, 1e-3)
        elif rule.kind == "qwen3_vl":
            grid = self.tower.grid
            each = (rows - grid.tokens + max(grid.group_rows, grid.group_cols)) / grid.temporal
        if room < each:
            raise AnalysisError(f"{self.folder} counts only to {rule.limit}: too little for one frame")
        return min(PART_FRAMES, int(room / each))

    def planner(self, settings: AnalysisSettings, frames: int = 9999) -> GroupPlanner:
        """The planner of a part of at most so many frames."""
        return GroupPlanner(self.engine.layout, settings.prefill, frames, frames / settings.fps)

    def parts(self, reader: RecordingReader, settings: AnalysisSettings) -> tuple[list[Pick], list[Part]]:
        """The samples of a recording, and the parts they are cut into.

        Raises:
            AnalysisError: The range holds no sample.
        """
        end = None if settings.end_s is None else round(settings.end_s * 1e6)
        picks = reader.picks(settings.fps, start_us=round(settings.start_s * 1e6), end_us=end)
        if not picks:
            raise AnalysisError(
                f"{reader.facts.name} has no frame from {settings.start_s:g} s to {settings.end_s} s; "
                f"it lasts {reader.facts.duration_us / 1e6:g} s"
            )
        size = self.part_frames(settings)
        out = []
        for number, first in enumerate(range(0, len(picks), size)):
            stop = min(len(picks), first + size)
            last = picks[stop].time_us if stop < len(picks) else min(reader.facts.duration_us, end or 1 << 60)
            out.append(Part(number, first, stop, picks[first].time_us / 1e6, last / 1e6))
        return picks, out

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
            settings: How.
            parts: Which of `self.parts(...)`, in order; None: all.
            on_part: Called with every part as soon as it is answered.
            progress: Called after every group.
            begun: `time.perf_counter()` before the recording was opened, for the timings.

        Returns:
            The parts' results, the timings, and the sampling, which knows its work and gaps.
        """
        how = settings or AnalysisSettings()
        begun = time.perf_counter() if begun is None else begun
        picks, whole = self.parts(reader, how)
        chosen = whole if parts is None else list(parts)
        wanted = [pick for part in chosen for pick in picks[part.first : part.stop]]
        sampling = reader.sample(
            picks=wanted,
            size=(self.tower.grid.height, self.tower.grid.width),
            fit=how.fit,
            threads=how.threads,
            lookahead=max(how.prefill.group_frames * (1 + how.waiting), 8),
        )
        state = _Run(self, questions, how, chosen, on_part, progress)
        start = time.perf_counter() - begun
        with sampling:
            _, timings = run_groups(
                state.groups(sampling),
                state.take,
                mode=how.mode,
                waiting=how.waiting,
                start_s=start,
                busy=(lambda: sampling.busy_s) if how.mode is Mode.OVERLAPPED else None,
            )
        return state.results, dataclasses.replace(timings, answer_s=state.answer_s), sampling

    def encode(
        self, frames: Sequence[FileFrame], settings: AnalysisSettings, carry: Carry | None
    ) -> EncodedStrides:
        """Sampled frames as the language model's tokens, stride by stride; see `AnalysisSettings.prune`."""
        members = [
            StrideFrame(
                Sample(each.pixels, Basis.LUMA, intra=each.picture.intra, corrupt=each.corrupt),
                each.time_us,
                each.slot,
            )
            for each in frames
        ]
        size = settings.stride_frames
        strides = [members[begin : begin + size] for begin in range(0, len(members), size)]
        policy, step_us = PrunePolicy(everything=not settings.prune), max(1, round(1e6 / settings.fps))
        return encode_strides(strides, self.tower, policy, step_us, carry)


class _Run:
    """The state of one run: groups from frames, parts from groups."""

    def __init__(  # noqa: PLR0917
        self,
        analyzer: Analyzer,
        questions: Sequence[Question],
        settings: AnalysisSettings,
        parts: Sequence[Part],
        on_part: Callable[[PartResult], None] | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.analyzer, self.questions, self.settings, self.parts = analyzer, questions, settings, parts
        self.results: list[PartResult] = []
        self.answer_s = 0.0
        self._on_part, self._progress = on_part, progress
        self._open: _Open | None = None
        self._decoded = self._prefilled = 0
        self._samples = sum(part.stop - part.first for part in parts)
        self._planner = analyzer.planner(settings, max((p.stop - p.first for p in parts), default=1))

    def groups(self, sampling: Sampling) -> Iterator[_Group]:
        """Groups of decoded frames; every part ends with a group, an empty one where frames are missing."""
        size = self.settings.prefill.group_frames * self.analyzer.tower.grid.temporal
        frames = iter(sampling)
        held: list[FileFrame] = []
        following = next(frames, None)
        position = 0
        for part in self.parts:
            stop = position + part.stop - part.first
            while following is not None and following.position < stop:
                held.append(following)
                self._decoded += 1
                following = next(frames, None)
                more = following is not None and following.position < stop
                if len(held) == size and more:
                    yield _Group(part, held, ends=False)
                    held = []
            yield _Group(part, held, ends=True)
            held, position = [], stop

    def take(self, group: _Group) -> None:
        """Encode and prefill a group; answer at the end of a part."""
        if group.frames:
            self._add(group)
        self._prefilled += len(group.frames)
        if group.ends:
            self._finish(group.part)
        if self._progress is not None:
            self._progress(
                Progress(self._decoded, self._prefilled, len(self.results), self._samples, len(self.parts))
            )

    def _add(self, group: _Group) -> None:
        tokens = self.analyzer.tower.grid.tokens
        if self._open is None:
            count = group.part.stop - group.part.first
            prefill = GroupPrefill(
                self.analyzer.engine,
                self.settings.prefill,
                questions=self.questions,
                expected_rows=self._planner.rows(-(-count // self.analyzer.tower.grid.temporal), tokens),
            )
            self._open = _Open(group.part, prefill)
        state = self._open
        found = self.analyzer.encode(group.frames, self.settings, state.carry)
        frames = [frame for stride in found.strides for frame in stride]
        plan = self._planner.plan(str(group.part.number), frames, state.prefill.last)
        cost = state.prefill.add(plan, frames)
        state.carry = found.carry
        state.frames += len(group.frames)
        state.tokens += sum(len(frame.kept) for frame in frames)
        state.tokens_total += tokens * len(frames)
        state.vision_flops += self.analyzer.tower.flops(found.inputs)
        state.prefill_flops += cost.flops

    def _finish(self, part: Part) -> None:
        state, self._open = self._open, None
        if state is None:  # no frame of it could be decoded
            self._deliver(PartResult(part, 0, ()))
            return
        begun = time.perf_counter()
        answers, flops = state.prefill.ask(self.questions, evidence=self.settings.evidence)
        self.answer_s += time.perf_counter() - begun
        last = state.prefill.last
        assert last is not None
        self._deliver(
            PartResult(
                part=part,
                frames=state.frames,
                answers=tuple(_part_answer(answer) for answer in answers),
                rows=last.before + last.rows,
                kept=state.prefill.kv.rows,
                kv_bytes=state.prefill.kv.kv_bytes,
                flops={"vision": state.vision_flops, "prefill": state.prefill_flops, "questions": flops},
                tokens=state.tokens,
                tokens_total=state.tokens_total,
            )
        )

    def _deliver(self, result: PartResult) -> None:
        self.results.append(result)
        if self._on_part is not None:
            self._on_part(result)


def analyze(
    source: str | os.PathLike[str] | bytes | Source,
    questions: Sequence[str],
    *,
    model: Path | str | None = None,
    device: str = "cpu",
    settings: AnalysisSettings | None = None,
    journal: Path | None = None,
    on_part: Callable[[PartResult], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
    analyzer: Analyzer | None = None,
    sandbox: bool = False,
    **options: Any,
) -> Analysis:
    """Ask questions about a recording.

    Example:
        >>> found = lookout.analyze("garden.mp4", ["Is a person in view?"], fps=1)
        >>> for answer in found.answers:
        ...     print(answer.question, answer.p_yes, answer.seen_s)

    Args:
        source: A path, an http(s) URL, bytes, or a `Source`.
        questions: Yes/no questions; together they cost one prefill.
        model: Folder of a checkpoint; None: the tiny model that comes with Lookout.
        device: Where the model runs.
        settings: How; `options` replace some of its fields, `rho`, `score` and `group_frames` those of its
            `prefill`.
        journal: File that remembers finished parts: a run that was stopped goes on behind them.
        on_part: Called with every part as soon as it is answered.
        progress: Called after every group.
        analyzer: A model that is loaded already.
        sandbox: Decode in sandboxed processes: for files from unknown sources.

    Raises:
        AnalysisError: The request makes no sense.
        CodecError: The recording cannot be read.
    """
    begun = time.perf_counter()
    if not questions or not all(text.strip() for text in questions):
        raise AnalysisError("ask at least one question, and none that is empty")
    how = with_options(settings or AnalysisSettings(), options)
    mine = analyzer or Analyzer(model, device=device)
    asked = [Question(str(i), text, how.describe) for i, text in enumerate(questions)]
    loaded = time.perf_counter()
    try:
        with open_recording(source, sandbox=sandbox, workers=how.threads) as reader:
            return _analyzed(mine, reader, asked, how, journal, on_part, progress, begun, loaded)
    finally:
        if analyzer is None:
            mine.close()


def _analyzed(  # noqa: PLR0917
    analyzer: Analyzer,
    reader: RecordingReader,
    questions: Sequence[Question],
    settings: AnalysisSettings,
    journal: Path | None,
    on_part: Callable[[PartResult], None] | None,
    progress: Callable[[Progress], None] | None,
    begun: float,
    loaded: float,
) -> Analysis:
    _, parts = analyzer.parts(reader, settings)
    book = Journal(journal, _identity(analyzer, reader, questions, settings)) if journal else None
    known = book.read() if book is not None else {}
    left = [part for part in parts if part.number not in known]

    def finished(result: PartResult) -> None:
        known[result.part.number] = result
        if book is not None:
            book.add(result)
        if on_part is not None:
            on_part(result)

    timings: Timings | None = None
    gaps: tuple[Gap, ...] = ()
    work: dict[str, int] = {}
    if left:
        _, timings, sampling = analyzer.run(
            reader, questions, settings, parts=left, on_part=finished, progress=progress, begun=loaded
        )
        gaps, work = sampling.gaps, dataclasses.asdict(sampling.work)
    results = tuple(known[part.number] for part in parts)
    return Analysis(
        source=reader.facts.name,
        seconds=reader.facts.duration_us / 1e6,
        frames=reader.facts.frames,
        questions=tuple(question.text for question in questions),
        answers=tuple(_answer(question, i, results) for i, question in enumerate(questions)),
        parts=results,
        gaps=gaps,
        timings=timings,
        work=work,
        wall_s=time.perf_counter() - begun,
    )


def with_options(settings: AnalysisSettings, options: Mapping[str, Any]) -> AnalysisSettings:
    """Settings with some fields replaced, those of `prefill` by their own names.

    Raises:
        AnalysisError: There is no such field.
    """
    inner = {f.name for f in dataclasses.fields(PrefillSettings)}
    outer = {f.name for f in dataclasses.fields(AnalysisSettings)}
    unknown = sorted(set(options) - inner - outer)
    if unknown:
        raise AnalysisError(
            f"no setting is called {unknown[0]!r}; there are {', '.join(sorted(inner | outer))}"
        )
    prefill = {name: value for name, value in options.items() if name in inner}
    if "score" in prefill:
        prefill["score"] = Score(prefill["score"])
    rest = {name: value for name, value in options.items() if name in outer}
    chosen = dataclasses.replace(settings, **rest)
    return dataclasses.replace(chosen, prefill=dataclasses.replace(chosen.prefill, **prefill))


class Journal:
    """Finished parts of one request, one JSON object a line behind a line that names the request.

    A line that a stopped run left half written is ignored; another request's journal is begun anew.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity

    def read(self) -> dict[int, PartResult]:
        """The parts that are finished, by number. Begins the file where it is missing or another's."""
        lines = self._lines()
        if not lines or lines[0].get("request") != self.identity:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({"request": self.identity}) + "\n")
            return {}
        found = [PartResult.from_dict(line) for line in lines[1:]]
        kept = [json.dumps(lines[0]), *(json.dumps(result.to_dict()) for result in found)]
        self.path.write_text("\n".join(kept) + "\n")
        return {result.part.number: result for result in found}

    def _lines(self) -> list[dict[str, Any]]:
        """The whole lines of the file."""
        lines: list[dict[str, Any]] = []
        if self.path.is_file():
            for line in self.path.read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except json.JSONDecodeError:
                    break
        return lines

    def add(self, result: PartResult) -> None:
        """Remember a part."""
        with self.path.open("a") as file:
            file.write(json.dumps(result.to_dict()) + "\n")
            file.flush()


def _identity(
    analyzer: Analyzer, reader: RecordingReader, questions: Sequence[Question], settings: AnalysisSettings
) -> str:
    """Names a request: model, recording, questions, and the settings that change answers."""
    same = dataclasses.replace(settings, mode=Mode.OVERLAPPED, waiting=1, threads=None)
    table = reader.table
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((analyzer.digest, [(q.text, q.describe) for q in questions])).encode())
    state.update(repr(same).encode())
    state.update(repr(reader.facts).encode())
    for array in (table.pts, table.size):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def trained_frames(folder: Path) -> int | None:
    """The frames of the windows that a checkpoint of `watchbench` was trained on; None for other models."""
    path = folder / "watchbench.json"
    if not path.is_file():
        return None
    frames = json.loads(path.read_text()).get("questions", {}).get("frames")
    return int(frames) if frames else None


def _part_answer(found: RecordingAnswer) -> PartAnswer:
    seen = tuple((each.time_us / 1e6, each.share) for each in found.evidence)
    return PartAnswer(found.answer.question, found.answer.p_yes, found.answer.text, seen)


def _answer(question: Question, place: int, results: Sequence[PartResult]) -> Answer:
    """One question over all parts: the part of the largest probability, and all that say Yes."""
    answered = [(result.answers[place], result.part) for result in results if result.answers]
    if not answered:
        raise CodecError(Reason.NO_FRAMES, f"none of {len(results)} parts has a frame that could be decoded")
    best, part = max(answered, key=lambda each: each[0].p_yes)
    yes: list[tuple[float, float]] = []
    for said, where in answered:
        if said.p_yes <= 0.5:
            continue
        if yes and abs(yes[-1][1] - where.start_s) < 1e-6:
            yes[-1] = (yes[-1][0], where.end_s)
        else:
            yes.append((where.start_s, where.end_s))
    return Answer(
        question.text, best.p_yes, part.number, part.start_s, part.end_s, best.seen_s, tuple(yes), best.text
    )


__all__ = [
    "Analysis",
    "AnalysisError",
    "AnalysisSettings",
    "Analyzer",
    "Answer",
    "Journal",
    "Part",
    "PartAnswer",
    "PartResult",
    "Progress",
    "analyze",
]
