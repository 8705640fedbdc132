"""Keeps the memories of one process's streams and answers questions about them, for the pipeline and `lookout
ask`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookout.models import asks_yes_no
from lookout.models.engines.transformers.engine import TransformersEngine, load_engine
from lookout.models.engines.transformers.memory import (
    AskCost,
    MemoryAnswer,
    ask,
    born_block,
    key_bias,
    prefix_of,
)
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.windows import StrideBlock, WindowPlan
from lookout.past.memory import (
    BornBlock,
    CameraMemory,
    Chapter,
    DamagedMemoryError,
    HistoryError,
    Keep,
    MemoryFolder,
    MemorySettings,
    OwnedMemoryError,
    Past,
    RangeCache,
    RetrievalSettings,
)
from lookout.past.memory.catalogue import Files
from lookout.past.memory.chapters import read_chapter, without_doubles
from lookout.past.memory.packing import checksum
from lookout.past.memory.past import fetch_from
from lookout.past.memory.shelf import Entry, entries, place_of
from lookout.past.memory.types import raw
from lookout.structured import named_shares
from lookout.values import check_finite, check_whole

CHAPTER_CACHE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame that an answer is based on: seconds from the start of the source, and its share of
    attention."""

    time: float
    weight: float


@dataclass(frozen=True, slots=True)
class Recollection:
    """An answer about one camera's past.

    Attributes:
        camera: the camera; `epoch` is the number of the stream within its source.
        question: the question.
        p_yes: the probability of yes, if it is a yes/no question; else None.
        text: the written answer, if one was asked for.
        moments: the frames that the answer is based on, in order of time.
        covered_from: where the time covered by the KV begins, in seconds from the start of the source; None:
            there is no KV.
        covered_to: where that time ends: the time of the newest frame.
        cost: the cost of the answer.
        answers: for a structured question, the probability of each allowed answer; else empty.
    """

    camera: str
    epoch: int
    question: str
    p_yes: float | None
    text: str | None
    moments: tuple[Moment, ...]
    covered_from: float | None
    covered_to: float
    cost: AskCost
    answers: Mapping[str, float] = field(default_factory=dict, hash=False)


def fingerprint(model: LanguageModel) -> str:
    """Return a checksum of some of a model's weights, because KV of one model means nothing to another."""
    last: Any = model.layers[len(model.layers) - 1]
    parts = (model.embedding.weight[:16], last.self_attn.k_proj.weight[:16])
    return checksum(*(raw(part).data for part in parts)).hex()


@dataclass(frozen=True, slots=True)
class PastSource:
    """One camera's past, which can be asked questions.

    Attributes:
        camera: the camera.
        began_us: when the stream starts, in microseconds from the start of the source; it is added to stream
            times.
        ask: answers a question (options as in `memory.ask`); returns the answer and the epoch's number.
    """

    camera: str
    began_us: int
    ask: Callable[..., tuple[MemoryAnswer, int]]

    def recall(
        self,
        question: str,
        *,
        since: float | None = None,
        until: float | None = None,
        words: int = 32,
        text: bool | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Recollection:
        """Answer a question, with times in seconds from the start of the source.

        Args:
            question: what to ask; one that begins with a verb such as "is" is a yes/no question.
            since: only frames from this time on; `until`: only frames before.
            words: maximum tokens of text.
            text: whether to write text; None: only if the question is not a yes/no question.
            on_text: called with each piece of text.

        Raises:
            HistoryError: there is no frame of that time.
        """
        yes_no = asks_yes_no(question)
        write = not yes_no if text is None else text
        answer, epoch = self.ask(
            question,
            since_us=None if since is None else round(since * 1e6) - self.began_us,
            until_us=None if until is None else round(until * 1e6) - self.began_us,
            describe=words if write else 0,
            on_text=on_text,
        )
        first = answer.covered_from_us
        return Recollection(
            camera=self.camera,
            epoch=epoch,
            question=question,
            p_yes=answer.p_yes if yes_no else None,
            text=answer.text,
            moments=tuple(Moment(self._seconds(frame.time_us), frame.share) for frame in answer.evidence),
            covered_from=None if first is None else self._seconds(first),
            covered_to=self._seconds(answer.covered_to_us),
            cost=answer.cost,
            answers=named_shares(question, answer.shares),
        )

    def _seconds(self, time_us: int) -> float:
        return (time_us + self.began_us) / 1e6


class StreamRecall:
    """The memory of one stream. Give it each window after the engine ran that window, then ask questions.

    Only one thread may add blocks; `ask` may be called from any thread. With a folder, every block is on disk
    when `close_block` returns.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        keep: str | int | Keep = "2h",
        *,
        settings: MemorySettings | None = None,
        retrieval: RetrievalSettings | None = None,
        folder: Path | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        """`keep`: a duration ("2h"), a size ("500MB") or bytes; `about`: camera, epoch and source."""
        self.engine = engine
        self.settings, self.retrieval = settings or MemorySettings(), retrieval or RetrievalSettings()
        self.keep = keep if isinstance(keep, Keep) else Keep.parse(keep)
        self.about: dict[str, Any] = about or {}
        self._folder = folder
        self._held: MemoryFolder | CameraMemory | None = None
        self._last_us: int | None = None

    @classmethod
    def of(cls, engine: TransformersEngine, held: MemoryFolder) -> StreamRecall:
        """Wrap the memory of an opened folder."""
        out = cls(engine, held.memory.keep, settings=held.memory.settings, about=held.about)
        out._held = held
        return out

    @property
    def memory(self) -> CameraMemory | None:
        """The memory itself; None until the first block."""
        return self._held.memory if isinstance(self._held, MemoryFolder) else self._held

    def close_block(self, plan: WindowPlan, block: StrideBlock) -> BornBlock:
        """Add the block with which `plan`'s window ends; call this right after the engine ran the plan.

        Raises:
            StreamLostError: the engine no longer holds that window.
            HistoryError: the block does not fit the memory.
        """
        times = [frame.time_us for frame in block.frames]
        gap = times[0] - self._last_us if times and self._last_us is not None else None
        born = born_block(self.engine, plan, block, frame_us=gap)
        if self._held is None:
            self._held = self._begin(plan)
        self._held.add(born)
        self._last_us = times[-1] if times else self._last_us
        return born

    def _begin(self, plan: WindowPlan) -> MemoryFolder | CameraMemory:
        model = self.engine.model
        shape, prefix = self.engine.kv_shape, prefix_of(self.engine, plan)
        bias = key_bias(model)
        if self._folder is None:
            return CameraMemory(shape, prefix, self.settings, bias=bias, keep=self.keep)
        return MemoryFolder.create(
            self._folder, shape, prefix, self.settings, bias=bias, keep=self.keep, about=self.about
        )

    def ask(self, question: str, *, settle: bool = True, **options: Any) -> MemoryAnswer:
        """Answer over the whole memory (options as in `memory.ask`). With `settle`, which only the memory's
        owner may set, then split clusters as far as the answer's fetches allow.

        Raises:
            HistoryError: the memory is empty.
        """
        memory = self.memory
        if memory is None or self._held is None:
            raise HistoryError("this memory is empty: close at least one block first")
        answer = ask(
            self.engine,
            memory.snapshot(),
            question,
            retrieval=options.pop("retrieval", self.retrieval),
            resident=memory.residency.__contains__,
            **options,
        )
        if settle:
            self._held.settle(answer.fetched)
        return answer

    def source(self, *, settle: bool = True) -> PastSource:
        """Return the memory as a `PastSource`; `settle` as in `ask`."""

        def answered(question: str, **options: Any) -> tuple[MemoryAnswer, int]:
            return self.ask(question, settle=settle, **options), int(self.about.get("epoch", 0))

        began_us = int(self.about.get("began_us", 0))
        return PastSource(str(self.about.get("camera", "")), began_us, answered)

    def close(self) -> None:
        """Write what is not on disk yet, and release the folder."""
        if isinstance(self._held, MemoryFolder):
            self._held.close()


class Recall:
    """The memories of all streams that a pipeline plays."""

    @staticmethod
    def check(keep: str | int) -> None:
        """Check that `keep` is a valid length for a memory; needs no model.

        Raises:
            HistoryError: `keep` is neither a duration nor a size.
        """
        Keep.parse(keep)

    def __init__(
        self, engine: object, keep: str | int, window: int, folder: Path | str | None = None, model: str = ""
    ) -> None:
        """`window` is the number of blocks in a window; `folder` keeps the memories on disk.

        Raises:
            HistoryError: `keep` is neither a duration nor a size, or the engine cannot keep a memory.
        """
        if not isinstance(engine, TransformersEngine):
            raise HistoryError("only the transformers engine can keep a memory")
        self._engine, self._keep = engine, Keep.parse(keep)
        self._settings = MemorySettings(window=window)
        self._folder, self._model = folder, model
        self._streams: dict[str, StreamRecall] = {}

    def close_block(self, plan: WindowPlan, block: StrideBlock, began_us: int, source: str = "") -> None:
        """Add the newest block of a window that was just run. The window's stream began `began_us`
        microseconds after the start of the source."""
        recall = self._streams.get(plan.stream)
        if recall is None:
            camera, _, epoch = plan.stream.rpartition("/")
            about = {"camera": camera, "epoch": int(epoch or 0), "began_us": began_us}
            about |= {"source": source, "model": self._model, "weights": fingerprint(self._engine.model)}
            path = None if self._folder is None else place_of(self._folder, camera, int(epoch or 0))
            recall = StreamRecall(self._engine, self._keep, settings=self._settings, folder=path, about=about)
            self._streams[plan.stream] = recall
        recall.close_block(plan, block)

    def ask(self, question: str, *, settle: bool = True, **options: Any) -> Iterator[Recollection]:
        """Yield the answer of every stream, in the order in which they began (options as in
        `PastSource.recall`). Streams without a frame in the time range are skipped.

        Raises:
            HistoryError: no stream has a frame in the range, or nothing is remembered.
        """
        return _ask_each(
            [stream.source(settle=settle) for stream in self._streams.values()], question, options
        )

    def close(self) -> None:
        """Write and release all memories; if one folder fails, the other memories are still written."""
        with contextlib.ExitStack() as stack:
            for stream in self._streams.values():
                stack.callback(stream.close)


def ask_folder(
    folder: Path | str,
    question: str,
    *,
    camera: str | None = None,
    model: str | Path | None = None,
    device: str = "cpu",
    settle: bool = True,
    **options: Any,
) -> Iterator[Recollection]:
    """Yield answers over memories on disk: one for each camera and epoch, and one for all chapters of a
    camera.

    Args:
        folder: one memory, or a folder of them.
        question: what to ask.
        camera: only memories of this camera.
        model: the checkpoint; None: the checkpoint that made the memory.
        device: where it runs.
        settle: split clusters as far as the answers allow, in memories that this process owns.
        options: as in `PastSource.recall`.

    Raises:
        DamagedMemoryError: some memories cannot be read; the answers over the others were yielded before.
        HistoryError: there is no memory, or another model made it.
    """
    shelf = entries(folder, camera)
    readable = [entry for entry in shelf if not entry.damage]
    damaged = [entry.damage for entry in shelf if entry.damage]
    if not readable:
        raise DamagedMemoryError("; ".join(damaged))
    checkpoint = model or readable[0].about.get("model")
    if not checkpoint:
        raise HistoryError(f"{readable[0].path} does not say which model made it: give the model")
    engine = load_engine(checkpoint, device)
    sources: list[PastSource] = []
    with contextlib.ExitStack() as stack:
        chapters = [entry for entry in readable if "chapter" in entry.about]
        for name in sorted({entry.camera for entry in chapters}):
            own = [entry.path for entry in chapters if entry.camera == name]
            sources.append(_chapters_source(engine, name, [read_chapter(path) for path in own]))
        for entry in readable:
            if "chapter" in entry.about:
                continue
            try:
                opened, owner = _open(entry.path)
            except DamagedMemoryError as error:
                damaged.append(str(error))
                continue
            stack.callback(opened.close)
            _check_made_by(engine, entry, opened)
            # Settling splits clusters and records the splits in the folder, which only the owner may do.
            sources.append(StreamRecall.of(engine, opened).source(settle=owner and settle))
        if sources:
            yield from _ask_each(sources, question, options)
    if damaged:
        raise DamagedMemoryError("; ".join(damaged))


def _check_made_by(engine: TransformersEngine, entry: Entry, opened: MemoryFolder) -> None:
    """Check that the engine's model made a memory's KV.

    Raises:
        HistoryError: The KV's shape or the model's weights differ.
    """
    weights = entry.about.get("weights", "")
    if opened.memory.shape != engine.kv_shape or weights not in ("", fingerprint(engine.model)):
        model = entry.about.get("model") or "unknown"
        raise HistoryError(f"{entry.path}: another model made it ({model}), so its KV does not fit")


def _open(path: Path) -> tuple[MemoryFolder, bool]:
    """Open a folder as its owner, or as a reader if another process owns it or it is not writable."""
    try:
        return MemoryFolder.open(path), True
    except OwnedMemoryError:
        pass
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
    return MemoryFolder.open(path, owner=False), False


def _chapters_source(
    engine: TransformersEngine, camera: str, reading: Sequence[tuple[Chapter, Files]]
) -> PastSource:
    """Return one camera's chapters, which the prefill service wrote, as a read-only `PastSource`. Times are
    seconds from the first frame of the oldest chapter."""
    chapters, _ = without_doubles([chapter for chapter, _ in reading])
    fetch = fetch_from({chapter.name: files for chapter, files in reading})
    ranges = RangeCache(fetch, CHAPTER_CACHE_BYTES)

    def answered(
        question: str, *, since_us: int | None, until_us: int | None, **options: Any
    ) -> tuple[MemoryAnswer, int]:
        past = Past(chapters, ranges, since_us=since_us, until_us=until_us)
        answer = ask(engine, past, question, since_us=since_us, until_us=until_us, **options)
        return answer, int(past.chapters[-1].head.about["epoch"])

    first = chapters[0]
    return PastSource(camera, -int(first.head.times_us[0]) - first.origin_us, answered)


def _ask_each(
    sources: Sequence[PastSource], question: str, options: dict[str, Any]
) -> Iterator[Recollection]:
    for name in ("since", "until"):
        if options.get(name) is not None:
            check_finite(name, options[name], HistoryError)
    if options.get("words") is not None:
        check_whole("words", options["words"], 1, 1 << 20, HistoryError)
    nothing: HistoryError | None = None
    answered = False
    for source in sources:
        try:
            answer = source.recall(question, **options)
        except HistoryError as error:
            nothing = error
            continue
        answered = True
        yield answer
    if not answered:
        raise nothing or HistoryError("nothing is remembered: watch a video first")
