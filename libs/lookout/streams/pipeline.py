"""Asks questions about a video in one process, without Kafka. Start reading the code here.

A video is cut into segments. Segments are decoded to sampled frames, frames become stride blocks of kept
tokens, and blocks form windows. Every window is asked every question. The fleet takes the same steps with the
same packages, one step per service (docs/architecture.md).
"""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import count
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NoReturn, Self
from weakref import WeakSet

from lookout import models
from lookout.errors import LookoutError
from lookout.models.engines.transformers.recall import Recall, Recollection, ask_folder
from lookout.models.presets import DEFAULT, PresetError, preset_of
from lookout.pruning import MaskPolicy, policy_of
from lookout.streams.session import EngineHost, HostSettings, Session, SessionWindow
from lookout.text import clean, public_url
from lookout.video.files import UrlSource
from lookout.video.sandbox import camera_segments, downloaded
from lookout.video.segments import CodecError, Reason, cut
from lookout.video.segments.webcam import is_webcam, webcam_frames

__all__ = ["Pipeline", "PipelineError", "Recollection", "Verdict", "ask_folder"]


class PipelineError(LookoutError, ValueError):
    """The settings do not fit together, or the pipeline cannot do what was requested."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question about one window.

    Attributes:
        time: Seconds from the start of the source to the end of the window.
        start: Seconds from the start of the source to the start of the window.
        question: The question.
        p_yes: Probability of yes, 0 to 1.
        basis: "key" for a window computed in full, "incremental" for one that reused KV of the previous
            window, "full" for one that continues a chain but was computed in full.
        tokens_kept: Visual tokens of the window.
        tokens_total: Visual tokens that the window would have without pruning.
        answers: For a structured question, the probability of each allowed answer; else empty.
    """

    time: float
    start: float
    question: str
    p_yes: float
    basis: str
    tokens_kept: int
    tokens_total: int
    answers: Mapping[str, float] = field(default_factory=dict, hash=False)


class Pipeline:
    """Asks questions about video.

    Example:
        >>> with Pipeline(questions=["Is anyone lying on the ground?"]) as pipeline:
        ...     for verdict in pipeline.watch("clip.mp4"):
        ...         print(verdict.time, verdict.question, verdict.p_yes)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        questions: Sequence[str] = (),
        *,
        fps: float | None = None,
        stride_s: float | None = None,
        window_s: float | None = None,
        policy: MaskPolicy | str | None = None,
        preset: str = DEFAULT,
        device: str = "cpu",
        memory: str | int | None = None,
        memory_dir: str | Path | None = None,
        anyway: bool = False,
    ) -> None:
        """Load the model.

        Args:
            model: Folder of a checkpoint of a family in `lookout.models.families`; None: the tiny model
                that comes with Lookout.
            questions: Yes/no questions, and structured ones: "How many people are in view? [0..5] when
                count >= 3".
            fps: Samples per second; None: as set in the model's folder, else 2.
            stride_s: Seconds by which windows slide, a whole number of samples; None: as set in the model's
                folder, else 8.
            window_s: Length of a window in seconds, a whole number of strides; None: as set in the model's
                folder, else 40.
            policy: Decides which patches are kept: a policy or a name in `lookout.pruning.POLICIES`; None:
                the policy of `preset`.
            preset: Which patches are kept and which KV is reused: a name in `lookout.models.presets.PRESETS`.
            device: Where the model runs: "cpu", "cuda", "cuda:1".
            memory: How much of the past to keep for `ask`: a duration ("2h"), a size ("500MB") or bytes.
            memory_dir: A folder that keeps the memory on disk; needs `memory`. None: keep it in this process.
            anyway: Accept questions for which the model was not trained, according to its folder.

        Raises:
            LookoutError: The settings do not fit together, or the model does not load.
        """
        _check_memory(memory, memory_dir)
        self._folder = models.find_model(model)
        self._anyway = anyway
        self._questions = models.check_questions(self._folder, questions, anyway=anyway)
        try:
            preset_of(preset)
            sampling = models.window_defaults(self._folder)
            self._sampling = sampling.changed(fps=fps, stride_s=stride_s, window_s=window_s)
        except (PresetError, models.SamplingError) as error:
            raise PipelineError(str(error)) from error
        self._policy, self._preset = None if policy is None else policy_of(policy), preset
        # All arguments were checked above, because loading the tower and the language model takes seconds.
        self._host = EngineHost(HostSettings(self._folder, device=device))
        self._engine = self._host.engine
        self._recall = None if memory is None else self._open_memory(memory, memory_dir)
        self._memory_dir = memory_dir
        # Numbers for the next streams, by camera.
        self._epochs: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._cameras: dict[str, str] = {}  # camera names, by source
        self._watching: WeakSet[Generator[SessionWindow]] = WeakSet()
        self._cut_off: WeakSet[Generator[SessionWindow]] = WeakSet()
        self._closed = False

    def _open_memory(self, memory: str | int, folder: str | Path | None) -> Recall:
        try:
            return Recall(self._engine, memory, self._sampling.window_blocks, folder, str(self._folder))
        except LookoutError:
            self._host.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Pipeline holds a loaded model and cannot be pickled: create a Pipeline in every process, for "
            "example in a DataLoader's worker_init_fn"
        )

    def __exit__(self, *error: object) -> None:
        self.close()

    def watch(self, source: str | Path | BinaryIO) -> Iterator[Verdict]:
        """Yield the verdicts of a video, window by window, as they are decided.

        If the clock of the video jumps, a new stream begins, because no window may span a jump. Pipes and
        cameras are read as data arrives, and closed when the iteration ends. If a camera ends its stream or
        becomes unreachable, `CodecError` is raised after its last verdict. To continue, watch the camera
        again; its windows then belong to a new stream.

        Args:
            source: A file; an http(s) URL, which is downloaded first; a camera's address, rtsp:// or
                rtsps://, with user name and password if required; a webcam, /dev/video0; a file
                object or pipe open for reading bytes; "-", which is standard input.

        Raises:
            CodecError: The source cannot be read, or breaks off.
            PipelineError: The kind of source is not supported, there are no questions and no memory, or the
                pipeline is closed.
        """
        return _verdicts(self.windows(source))

    def windows(self, source: str | Path | BinaryIO) -> Generator[SessionWindow]:
        """Yield the windows of a video with their verdicts and costs, including those without an answer.

        Args:
            source: As for `watch`.

        Raises:
            CodecError: The source cannot be read, or breaks off.
            PipelineError: The kind of source is not supported, there are no questions and no memory, or the
                pipeline is closed.
        """
        if self._closed:
            raise PipelineError("this pipeline is closed: open another one")
        if not self._questions and self._recall is None:
            raise PipelineError(
                "the pipeline has no questions: give questions=, or memory= to ask about the past later"
            )
        # This method is not a generator, so that a closed pipeline raises here and not at the first `next`.
        windows = self._watch(source)
        self._watching.add(windows)
        return self._until_closed(windows)

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions asked of every window."""
        return tuple(self._questions)

    @property
    def device(self) -> str:
        """The device on which the model runs, such as "cuda:0"."""
        return str(self._host.settings.device)

    def _until_closed(self, windows: Generator[SessionWindow]) -> Generator[SessionWindow]:
        """Yield the windows; raise if the pipeline is closed before the end of the video."""
        yield from windows
        if windows in self._cut_off:
            raise PipelineError("this pipeline was closed before the end of the video")

    def _watch(self, source: str | Path | BinaryIO) -> Generator[SessionWindow]:
        with ExitStack() as opened:
            pushes, name = self._pushes(source, opened)
            session = opened.enter_context(self._session(name))
            failure: CodecError | None = None
            try:
                for data, times in pushes:
                    yield from session.push(data, times)
            except _EndedError as end:
                failure = end.reason
            yield from session.flush()
            if failure is not None:
                raise failure

    def _pushes(self, source: str | Path | BinaryIO, opened: ExitStack) -> tuple[Iterator[_Push], str]:
        """Return an iterator over a source's segments as they arrive, and the source's name."""
        if isinstance(source, str) and source.lower().startswith(("rtsp://", "rtsps://")):
            return opened.enter_context(closing(_camera_segments(source))), public_url(source)
        if is_webcam(source):
            return webcam_frames(str(source), self._sampling.fps), str(source)
        readable, name = _opened(source, opened)
        return _file_segments(readable, name), name

    def _session(self, source: str) -> Session:
        """Open a session in which a source is read once."""
        camera = self._camera_of(source)
        return Session(
            engine=self._host,
            window_s=self._sampling.window_s,
            stride_s=self._sampling.stride_s,
            fps=self._sampling.fps,
            preset=self._preset,
            policy=self._policy,
            questions=self._questions,
            anyway=self._anyway,
            on_window=partial(self._remember, source),
            name=camera,
            numbers=self._epochs[camera],
        )

    def _remember(self, source: str, window: SessionWindow) -> None:
        """Store the block that closed a window in the memory, while the engine still has its KV."""
        plan, blocks = window.played.plan, window.played.blocks
        if self._recall is not None and plan is not None:
            self._recall.close_block(plan, blocks[-1], round(window.begun * 1e6), source)

    def _camera_of(self, source: str) -> str:
        """Return the camera name of a source: its file name without the suffix, with a number if another
        source, or a camera in the memory's folder, already has that name."""
        if source not in self._cameras:
            stem = PurePath(source).stem or "camera"
            names_in_use = {*self._cameras.values(), *self._cameras_in_memory()}
            names = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
            self._cameras[source] = next(name for name in names if name not in names_in_use)
        return self._cameras[source]

    def _cameras_in_memory(self) -> list[str]:
        """Return the names of the cameras in the memory's folder."""
        if self._memory_dir is None or not Path(self._memory_dir).is_dir():
            return []
        return [path.name for path in Path(self._memory_dir).iterdir() if path.is_dir()]

    def ask(self, question: str, **options: Any) -> Iterator[Recollection]:
        """Answer a question about the past, once per stream watched so far; needs `memory`.

        Args:
            question: The question. One that begins with a verb such as "is" is a yes/no question.
            options: `since`, `until` (seconds from the start of the source), `words`, `text`, `on_text`.

        Raises:
            LookoutError: The memory has nothing of that time, or the pipeline is closed.
        """
        if self._closed:
            raise PipelineError(
                "this pipeline is closed: open another one, or use ask_folder to ask its memory_dir"
            )
        question = models.check_question(
            self._folder, question, text=bool(options.get("text")), anyway=self._anyway
        )
        if self._recall is None:
            raise PipelineError("this pipeline keeps no memory: open it with memory=, such as memory='2h'")
        return self._recall.ask(question, **options)

    def close(self) -> None:
        """Free the model, end iterations over `watch` that are in progress, and close their files and
        processes."""
        self._closed = True
        # If one of the calls fails, the stack still makes the others. The last callback is called first.
        with ExitStack() as closing_calls:
            closing_calls.callback(self._host.close)
            if self._recall is not None:
                closing_calls.callback(self._recall.close)
            for windows in list(self._watching):
                if getgeneratorstate(windows) != GEN_CLOSED:
                    self._cut_off.add(windows)
                closing_calls.callback(windows.close)


_Push = tuple[Any, float | None]


class _EndedError(Exception):
    """The source ended unexpectedly. `reason` is raised to the caller after the last verdicts."""

    def __init__(self, reason: CodecError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _file_segments(readable: Path | BinaryIO, name: str) -> Iterator[_Push]:
    why: list[str] = []
    for piece in cut(readable, broken_off=why.append):
        yield piece.data, piece.start_us / 1e6
    if why:
        raise _EndedError(CodecError(Reason.UNREADABLE, f"{clean(name)} ends unexpectedly: {why[0]}"))


def _camera_segments(url: str) -> Generator[_Push]:
    segments = camera_segments(url)
    first = next(segments)  # outside `try`: a camera that sends nothing raises its error at once
    yield first, None
    try:
        for segment in segments:
            yield segment, None
    except CodecError as error:
        raise _EndedError(error) from error


def _verdicts(windows: Generator[SessionWindow]) -> Iterator[Verdict]:
    """Yield the verdicts of answered windows."""
    with closing(windows):  # closing the iterator stops reading the source
        for window in windows:
            for answer in window.answers:
                yield Verdict(
                    time=window.end,
                    start=window.start,
                    question=answer.question,
                    p_yes=answer.p_yes if answer.p_yes is not None else float("nan"),
                    basis=answer.basis,
                    tokens_kept=window.tokens_kept,
                    tokens_total=window.tokens_total,
                    answers=answer.answers,
                )


def _check_memory(memory: str | int | None, folder: str | Path | None) -> None:
    """Check the size of a memory and its folder.

    Raises:
        LookoutError: The size is not valid, or the folder is a file.
    """
    if folder is not None and memory is None:
        raise PipelineError(
            "memory_dir needs memory: set memory to how much of the past to keep, such as '2h'"
        )
    if memory is not None:
        Recall.check(memory)
    if folder is not None and not Path(folder).is_dir() and Path(folder).exists():
        raise PipelineError(f"memory_dir is the file {clean(folder)}: give a folder")


def _opened(source: str | Path | BinaryIO, opened: ExitStack) -> tuple[Path | BinaryIO, str]:
    """Return the source as a path or open file, and its name. A URL is downloaded to a temporary file that
    `opened` removes."""
    if not isinstance(source, (str, Path)):
        if not callable(getattr(source, "read", None)):
            raise PipelineError(f"a video must be a path, a URL or a file object, not {source!r:.80}")
        if not _reads_bytes(source):
            raise PipelineError("a file object must be open for reading bytes")
        return source, str(getattr(source, "name", "pipe"))
    text = str(source)
    if source == "-":
        if sys.stdin.isatty():
            raise PipelineError("standard input is a terminal: give a video through a pipe")
        return sys.stdin.buffer, "standard input"
    if text.lower().startswith(("http://", "https://")) and isinstance(source, str):
        return opened.enter_context(downloaded(UrlSource(text))).path, public_url(text)
    if isinstance(source, str) and "://" in text:
        url = public_url(text)
        raise PipelineError(
            f"{url} is not a supported kind of source: give a file, an http(s) or rtsp(s) URL, /dev/video0, "
            f"a pipe or -; for example, pipe `ffmpeg -i {url} -c copy -f mpegts -` to standard input"
        )
    if not text:
        raise PipelineError("the name of the video is empty: give a path or a URL")
    path = Path(source)
    if not path.exists() or path.is_dir():
        why = "is a folder" if path.is_dir() else "does not exist"
        raise CodecError(Reason.UNREADABLE, f"{path} cannot be read ({why})")
    return path, str(path.resolve())


def _reads_bytes(file: BinaryIO) -> bool:
    """Whether a file object is open for reading bytes. File objects of other libraries may have no method but
    `read`; they count as open."""
    try:
        return not isinstance(file, io.TextIOBase) and getattr(file, "readable", lambda: True)()
    except (OSError, ValueError):  # the file is closed
        return False
