"""Asks questions about a sliding window of one camera or video."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lookout import models
from lookout.models.engines import Answer, Cost, Question, StreamLostError, TextSettings, WindowRequest
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.vision import FrameInput
from lookout.models.windows import Planner, WindowPlan
from lookout.pruning import MaskPolicy, policy_of
from lookout.streams import ChainRule, ChainRunner, EngineAnswers, Player, basis_of
from lookout.streams.session.errors import DeadlineError, SessionError
from lookout.streams.session.feed import ClosedBlock, Feed, Frames
from lookout.streams.session.host import EngineHost, HostSettings, Patience, SharedEngine, borrow, give_back
from lookout.streams.session.types import SessionAnswer, SessionWindow, attended, evidence_of
from lookout.structured import named_shares

T = TypeVar("T")
DESCRIBE: Final = "Describe what happens."


class Session:
    """One camera or video on a model that is shared with other sessions.

    Example:
        >>> with lookout.Session("/models/InternVL3-8B-hf", engine="vllm", window_s=40) as session:
        ...     session.push(segment)  # encoded bytes, or frames with their times
        ...     session.ask("Is anyone lying on the ground?").p_yes

    `push` encodes the patches that changed and advances the window. `ask` asks about the newest window and
    changes nothing: the answers are bit-identical if you ask later, in another order or from several threads.
    A call that fails leaves the session unchanged. If the byte budget evicted a session's KV, its next window
    is computed in full, and its `basis` is "key".

    Sessions with the same model and settings share one engine, which the first session loads. Their waiting
    windows form one batch. Calls of one session run one at a time. `apush`, `aask` and `adescribe` are the
    same calls for asyncio; a task that is cancelled before its work starts does no work.

    Args:
        model: Folder of a checkpoint of a family in `lookout.models.families`; None: the tiny model that
            comes with Lookout.
        engine: "transformers" or "vllm"; or an `EngineHost`, whose owner must close it and keep the names of
            streams unique.
        window_s: Seconds of a window, a whole number of strides; None: as set in the model's folder, else
            40.
        stride_s: Seconds by which windows slide, a whole number of samples; None: as set in the model's
            folder, else 8.
        fps: Samples per second; None: as set in the model's folder, else 2.
        preset: Which patches are kept and how windows reuse KV: a name in `lookout.models.presets.PRESETS`.
        policy: Decides which patches are kept: a policy or a name in `lookout.pruning.POLICIES`; None: the
            policy of `preset`.
        questions: Yes/no questions that every window is asked when it closes.
        on_window: Called with every window when it closes, while the engine has the window's KV; None:
            nothing is called.
        name: Name of the camera. It determines which windows are key windows, so a video gives the same
            answers again under the same name. None: "session-" and a number.
        numbers: Yields the numbers of the camera's streams; a jump of the clock begins the next stream. None:
            0, 1, 2, ...
        device: Device of the tower and of the transformers engine: "cpu", "cuda", "cuda:1". None: with vLLM,
            the device for which its wheel was built; with transformers, the CPU.
        dtype: Data type of weights and KV: "float32", "bfloat16" or "float16"; None: float32 on a CPU, else
            the type that the GPU computes natively.
        budget_bytes: Limit on the KV of all sessions of the engine. If the limit is too low for all sessions,
            the earliest ones keep their KV. None: 1 GiB on a CPU; on a GPU, the memory that weights and one
            pass leave free.
        options: Further arguments of the engine's `load_engine`, such as vLLM's `tensor_parallel`.
        anyway: Accept questions for which the model was not trained, according to its folder.

    Raises:
        LookoutError: The settings do not fit together, or the model does not load.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        engine: str | EngineHost = "transformers",
        *,
        window_s: float | None = None,
        stride_s: float | None = None,
        fps: float | None = None,
        preset: str = DEFAULT,
        policy: MaskPolicy | str | None = None,
        questions: Sequence[str] = (),
        on_window: Callable[[SessionWindow], object] | None = None,
        name: str | None = None,
        numbers: Iterator[int] | None = None,
        device: str | None = None,
        dtype: str | None = None,
        budget_bytes: int | None = None,
        options: Mapping[str, Any] | None = None,
        anyway: bool = False,
    ) -> None:
        folder = engine.settings.folder if isinstance(engine, EngineHost) else models.find_model(model)
        questions = models.check_questions(folder, questions, anyway=anyway)
        self._anyway = anyway
        rules, masks = preset_of(preset), None if policy is None else policy_of(policy)
        _check_caller(name, on_window, options)
        try:
            sampling = models.window_defaults(folder)
            sampling = sampling.changed(fps=fps, stride_s=stride_s, window_s=window_s)
        except models.SamplingError as error:
            raise SessionError(str(error)) from error
        self._folder, self._questions = folder, [Question(text, text) for text in questions]
        self._borrowed = not isinstance(engine, EngineHost)
        if isinstance(engine, EngineHost):
            self._host = engine
        else:
            pairs = tuple(sorted((options or {}).items()))
            self._host = borrow(HostSettings(folder, engine, device, dtype, budget_bytes, pairs))
        self._lock, self._closed, self._on_window = threading.RLock(), False, on_window
        try:
            self.name = self._host.take_name(name) if self._borrowed else str(name)
        except SessionError:
            self._end()
            raise
        self._engine = SharedEngine(self._host)
        self._planner = Planner(self._host.layout, rules.windows.sampled(sampling))
        self._player = Player(self._engine, self._planner)
        tower = self._host.tower
        numbers = count() if numbers is None else numbers
        self._feed = Feed(self.name, tower, masks or rules.masks, sampling, numbers)
        self._newest: SessionWindow | None = None
        self._whole_flops = self._encoding_flops(
            [np.ones((tower.grid.group_rows, tower.grid.group_cols), bool)]
        )

    def __enter__(self) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Session holds the state of a stream and cannot be pickled: create a Session in every process"
        )

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def push(
        self,
        data: bytes | Frames,
        times: Sequence[float] | float | None = None,
        *,
        deadline_s: float | None = None,
    ) -> list[SessionWindow]:
        """Add more of the video and return the windows that close. The call returns when these windows are
        computed, so a caller that pushes too fast waits here for the engine.

        Args:
            data: An encoded segment that begins with a keyframe, or RGB frames, uint8 [n, height, width, 3].
            times: For frames: their rising times in seconds. For an encoded segment: the time in seconds at
                which it begins, used only if the clock in its bytes does not continue the previous segment.
                None: the segment begins where the previous one ends.
            deadline_s: Seconds within which the engine must have started; None: no deadline.

        Raises:
            DeadlineError: The engine had not started by the deadline.
            LookoutError: The bytes cannot be decoded, the frames are invalid, or a window cannot be computed.
        """
        return self._in_turn(deadline_s, lambda _: self._push(data, times))

    def flush(self, *, deadline_s: float | None = None) -> list[SessionWindow]:
        """Close the open stride at the end of a video and return the windows that close.

        The next push begins a new stream, and no window spans both streams. `deadline_s` and errors: see
        `push`.
        """
        return self._in_turn(deadline_s, lambda _: self._take(self._feed.copy(), Feed.end))

    def ask(
        self,
        question: str,
        *,
        text: bool | None = None,
        on_text: Callable[[str], object] | None = None,
        deadline_s: float | None = None,
        **how: Any,
    ) -> SessionAnswer:
        """Ask about the newest window.

        Args:
            question: The question.
            text: Whether to answer in words; None: only if `question` is not a yes/no question.
            on_text: Called with each piece of an answer in words as soon as it is written.
            deadline_s: Seconds within which the engine must have started; an answer in words is cut off at
                the deadline. None: no deadline.
            how: Settings of an answer in words (`lookout.models.engines.TextSettings`): `tokens`,
                `temperature`, `seed`, `stop` and, with vLLM, `schema`.

        Raises:
            DeadlineError: The engine had not started by the deadline.
            LookoutError: No window has closed yet, the newest window is not asked, or the question is
                invalid.
        """
        return self._in_turn(deadline_s, lambda patience: self._ask(question, text, on_text, how, patience))

    def describe(
        self, prompt: str = DESCRIBE, *, deadline_s: float | None = None, **how: Any
    ) -> Iterator[str]:
        """Yield the answer in words to `prompt`, piece by piece. Close the iterator to stop the answer. For
        the other arguments and the errors, see `ask`."""
        pieces: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        patience = Patience(deadline_s)

        def run() -> None:
            try:
                self._in_turn(
                    None, lambda _: self._ask(prompt, True, pieces.put, how, patience), patience=patience
                )
                pieces.put(None)
            except BaseException as error:
                pieces.put(error)

        thread = threading.Thread(target=run, name="describe", daemon=True)
        thread.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            patience.cancel()
            thread.join()

    def close(self) -> None:
        """Free the session's KV and name. The last session of an engine also frees the model."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._player.close()
            if self._borrowed:
                self._host.give_name(self.name)
        self._end()

    async def apush(
        self,
        data: bytes | Frames,
        times: Sequence[float] | float | None = None,
        *,
        deadline_s: float | None = None,
    ) -> list[SessionWindow]:
        """`push` for asyncio."""
        patience = Patience(deadline_s)
        return await _awaited(
            patience, partial(self._in_turn, None, lambda _: self._push(data, times), patience=patience)
        )

    async def aask(
        self, question: str, *, text: bool | None = None, deadline_s: float | None = None, **how: Any
    ) -> SessionAnswer:
        """`ask` for asyncio."""
        patience = Patience(deadline_s)
        work = partial(self._ask, question, text, None, how, patience)
        return await _awaited(patience, partial(self._in_turn, None, lambda _: work(), patience=patience))

    async def adescribe(
        self, prompt: str = DESCRIBE, *, deadline_s: float | None = None, **how: Any
    ) -> AsyncIterator[str]:
        """`describe` for asyncio."""
        pieces = self.describe(prompt, deadline_s=deadline_s, **how)
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            await asyncio.to_thread(pieces.close)  # type: ignore[attr-defined]

    def _in_turn(
        self, deadline_s: float | None, work: Callable[[Patience], T], *, patience: Patience | None = None
    ) -> T:
        """Run work when no other call of this session runs, and return its result.

        Raises:
            DeadlineError: The deadline passed first.
            SessionError: The session is closed or belongs to another process.
        """
        self._host.check_process()
        patience = patience or Patience(deadline_s)
        if not self._lock.acquire(timeout=patience.left()):
            raise DeadlineError("the deadline passed while another call of this session was running")
        try:
            if self._closed:
                raise SessionError(f"session {self.name!r} is closed: open another one")
            patience.check()
            # The outer call's deadline is restored, because `on_window` and `on_text` may themselves call
            # `ask`.
            outer, self._engine.patience = self._engine.patience, patience
            try:
                return work(patience)
            finally:
                self._engine.patience = outer
        finally:
            self._lock.release()

    def _push(self, data: bytes | Frames, times: Sequence[float] | float | None) -> list[SessionWindow]:
        if isinstance(data, (bytes, bytearray, memoryview)):
            if times is not None and np.ndim(times):
                raise SessionError(
                    "encoded bytes contain the times of their frames: as times, give only the time at which "
                    "the bytes begin, or None"
                )
            start_s = None if times is None else np.asarray(times).item()
            return self._take(self._feed.copy(), lambda feed: feed.segment(bytes(data), start_s))
        if data is None or isinstance(data, (str, Path)) or hasattr(data, "read"):
            raise SessionError(
                f"data must be encoded bytes or RGB frames, not {type(data).__name__}; to read a file, use "
                "lookout.Pipeline"
            )
        if times is None:
            raise SessionError("frames need times: give the time of every frame in seconds")
        if isinstance(times, Iterator):
            times = list(times)
        if not np.ndim(times):
            data = [np.asarray(data)]  # one frame and its time
        seconds = np.atleast_1d(times).tolist()
        return self._take(self._feed.copy(), lambda feed: feed.pictures(data, seconds))

    def _take(self, feed: Feed, add: Callable[[Feed], list[ClosedBlock]]) -> list[SessionWindow]:
        """Add video to `feed` with `add`, and return the windows of the blocks that close. If anything fails,
        the session is unchanged."""
        blocks = add(feed)
        player, newest = self._player, self._newest
        state = player.state()
        try:
            windows = [self._played(block) for block in blocks]
        except BaseException:
            if self._player is not player:
                self._player.close()
            self._player, self._newest = player, newest
            player.restore(state)
            raise
        if self._player is not player:
            player.close()
        self._feed = feed
        return windows

    def _played(self, closed: ClosedBlock) -> SessionWindow:
        stream = closed.block.block.stream
        if stream not in self._player.streams and self._player.streams:
            self._player = Player(self._engine, self._planner)
        (played,) = self._player.step([closed.block], self._questions)
        plan, answer, first = played.plan, played.answer, played.blocks[0].index
        begun = closed.begun_us / 1e6
        window = SessionWindow(
            start=begun + first * self._feed.sampling.stride_us / 1e6,
            end=begun + closed.end_us / 1e6,
            answers=(),
            basis=None if plan is None or answer is None else basis_of(plan, answer),
            tokens_kept=sum(block.tokens for block in played.blocks),
            tokens_total=sum(frame.keep.size for block in played.blocks for frame in block.frames),
            begun=begun,
            played=played,
            refusal=None if played.refusal is None else played.refusal.reason,
            vision_flops=self._encoding_flops(closed.block.masks),
            vision_flops_dense=sum(len(block.frames) for block in played.blocks) * self._whole_flops,
        )
        if answer is not None:
            answers = tuple(
                _answer(window, reply.question, window.basis, answer.cost, reply=reply)
                for reply in answer.answers
            )
            window = replace(window, answers=answers)
        self._newest = window
        if self._on_window is not None:
            self._on_window(window)
        return window

    def _encoding_flops(self, masks: Sequence[NDArray[np.bool_]]) -> int:
        """Return the tower's FLOPs for frames of which it encodes these groups, bool [group_rows, group_cols]
        per frame."""
        grid = self._feed.tower.grid
        blank = np.broadcast_to(np.uint8(0), (1, grid.height, grid.width, 3))
        return self._feed.tower.flops([FrameInput(blank, mask) for mask in masks])

    def _ask(
        self,
        question: str,
        text: bool | None,
        on_text: Callable[[str], object] | None,
        how: Mapping[str, Any],
        patience: Patience,
    ) -> SessionAnswer:
        window = self._newest
        if window is None:
            raise SessionError(
                f"no stride has closed yet: push more than {self._feed.sampling.stride_s:g} s of video, or "
                "call flush"
            )
        if window.refusal is not None:
            raise SessionError(f"the newest window is not asked: {window.refusal}")
        words = text if text is not None else not (isinstance(question, str) and models.asks_yes_no(question))
        checked_question = models.check_question(self._folder, question, text=words, anyway=self._anyway)
        if words:  # a prompt keeps its line breaks
            return self._write(window, question, _text_settings(how), on_text, patience)
        question = checked_question
        if how or on_text is not None:
            raise SessionError(
                f"{', '.join(how) or 'on_text'} applies only to an answer in words: also give text=True"
            )
        plan, key = _plan_of(window), False
        asked = [Question(question, question)]
        try:
            answer = self._engine.call(partial(self._host.engine.ask, plan, asked))
        except StreamLostError:
            # The byte budget evicted the window's KV, or the preset keeps none. The window is computed again,
            # in full or stride by stride, and its KV is then freed, so that asking changes nothing.
            rule, key = ChainRule(self._planner, reuse=False), True
            runner = ChainRunner(rule, EngineAnswers(self._engine))
            answer = runner.ask(rule.begin(), window.played.blocks, asked).answer
        basis = "key" if key else window.basis
        return _answer(window, question, basis, answer.cost, reply=answer.answers[0])

    def _write(
        self,
        window: SessionWindow,
        question: str,
        settings: TextSettings,
        on_text: Callable[[str], object] | None,
        patience: Patience,
    ) -> SessionAnswer:
        """Return an answer in words. The whole answer is one job on the engine's thread, so pushes of other
        sessions wait until it ends."""
        engine, plan = self._host.engine, _plan_of(window)

        def write(plan: WindowPlan, give: Callable[[str], object]) -> Cost:
            writing = engine.write(plan, question, settings, patience.lasts)
            while True:
                try:
                    give(next(writing))
                except StopIteration as end:
                    cost: Cost = end.value
                    return cost

        def recomputed(give: Callable[[str], object]) -> Cost:
            # The stream gets another name, so that the KV of the session's own stream does not change.
            blocks = [replace(block, stream=f"{block.stream}?") for block in window.played.blocks]
            plan = self._planner.plan(blocks, key=True)
            try:
                engine.run([WindowRequest(plan, blocks)])[0].unwrap()
                return write(plan, give)
            finally:
                engine.close_stream(plan.stream)

        pieces: list[str] = []

        def take(piece: str) -> None:
            pieces.append(piece)
            if on_text is not None:
                on_text(piece)

        basis = window.basis
        try:
            cost = self._engine.stream(partial(write, plan), take)
        except StreamLostError:
            cost, basis = self._engine.stream(recomputed, take), "key"
        return _answer(window, question, basis, cost, text="".join(pieces))

    def _end(self) -> None:
        if self._borrowed:
            give_back(self._host)


async def _awaited(patience: Patience, work: Callable[[], T]) -> T:
    """Run work on a thread and return its result. If the task is cancelled, work that has not started never
    starts."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        patience.cancel()
        with suppress(CancelledError, Exception):
            await thread
        raise


def _plan_of(window: SessionWindow) -> WindowPlan:
    plan = window.played.plan
    assert plan is not None, "a window that is asked has a plan"
    return plan


def _answer(
    window: SessionWindow,
    question: str,
    basis: str | None,
    cost: Cost,
    *,
    reply: Answer | None = None,
    text: str | None = None,
) -> SessionAnswer:
    blocks, frames = window.played.blocks, () if reply is None else reply.frames
    evidence = attended(blocks, frames, window.begun) or evidence_of(blocks[-1], window.begun)
    answer = SessionAnswer(question, window.start, window.end, str(basis), cost, evidence, text=text)
    if reply is None:
        return answer
    return replace(answer, p_yes=reply.p_yes, answers=named_shares(question, reply.shares))


def _text_settings(how: Mapping[str, Any]) -> TextSettings:
    """Return the settings of an answer in words.

    Raises:
        SessionError: A setting does not exist.
    """
    names = [field.name for field in fields(TextSettings)]
    if unknown := [name for name in how if name not in names]:
        raise SessionError(
            f"{', '.join(unknown)} is not a setting of answers in words; choose from {', '.join(names)}"
        )
    stop = how.get("stop", ())
    return TextSettings(**{**how, "stop": (stop,) if isinstance(stop, str) else tuple(stop)})


def _check_caller(name: object, on_window: object, options: object) -> None:
    """Check argument types before the model is loaded.

    Raises:
        SessionError: An argument has the wrong type.
    """
    if name is not None and not isinstance(name, str):
        raise SessionError(f"name must be a text such as 'gate', not {name!r:.80}")
    if on_window is not None and not callable(on_window):
        raise SessionError(f"on_window must be a function that takes a window, not {on_window!r:.80}")
    if options is not None and not isinstance(options, Mapping):
        raise SessionError(f"options must be a mapping such as {{'max_rows': 4096}}, not {options!r:.80}")
