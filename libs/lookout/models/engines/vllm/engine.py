"""The vLLM engine: the same window requests and answers as the transformers engine, on vLLM's block table."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import structlog
import torch

from lookout.models.engines.admission import Admission, ModelLimits, refused, run_batch
from lookout.models.engines.asked import (
    AnswerNode,
    AskedQuestion,
    Suffix,
    check_writable,
    places_of,
    structured_answer,
)
from lookout.models.engines.budget import KvBudget
from lookout.models.engines.costs import window_cost, with_text, written_flops
from lookout.models.engines.faults import FAILURES, Fault, fault_of
from lookout.models.engines.shape import ModelShape
from lookout.models.engines.text import TextBuffer
from lookout.models.engines.types import (
    Answer,
    Cost,
    DeviceError,
    EngineError,
    Question,
    StreamFailedError,
    StreamLostError,
    StreamMemory,
    TextSettings,
    WindowAnswer,
    WindowRequest,
)
from lookout.models.engines.vllm.internals import Backend, EngineCall, EngineOutput
from lookout.models.engines.vllm.store import WindowInputs
from lookout.models.windows import NEWLINE, Layout, WindowPlan, held_window, rows_in
from lookout.past.memory import KVShape

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _StreamRecord:
    """What the engine knows about a stream's KV on the workers."""

    window: int
    digest: str
    rows: int


@dataclass(slots=True, eq=False)
class _Work:
    """One admitted request on its way through a batch."""

    index: int
    request: WindowRequest
    suffixes: list[Suffix]
    nodes: dict[int, AnswerNode]
    key: str
    salt: str
    alone: bool = False
    outputs: list[EngineOutput] = field(default_factory=list)
    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    error: str | None = None

    @property
    def plan(self) -> WindowPlan:
        return self.request.plan

    @property
    def name(self) -> str:
        """Name under which the window's KV is kept."""
        return self.plan.stream if self.request.keep else f"{self.key}!"

    @property
    def load(self) -> int:
        """Number of leading rows before the tail that vLLM prefills."""
        last = self.plan.compute[-1] if self.plan.compute else None
        if last is None or last.stop != self.plan.rows:
            return self.plan.rows
        return last.start

    def prompt(self, suffix: Sequence[int]) -> list[int]:
        """Token ids of the window and of what follows it; 0 for visual rows and newlines, whose embeddings
        the workers provide."""
        ids = self.plan.token_ids
        return [*np.where(ids < 0, 0, ids).tolist(), *(max(0, token) for token in suffix)]

    def newlines(self, suffix: Sequence[int]) -> tuple[int, ...]:
        """Rows of the prompt that are learned newlines."""
        inside = np.flatnonzero(self.plan.token_ids == NEWLINE).tolist()
        return (*inside, *(self.plan.rows + i for i, token in enumerate(suffix) if token == NEWLINE))


class VllmEngine:
    """Executes window plans inside unpatched vLLM (`Engine` protocol).

    A window is one vLLM request whose leading rows come from the stream's canonical KV; its further questions
    are requests over the finished window. The rest of a partial block, which vLLM would recompute, is loaded
    too, so that both engines compute the same rows.
    """

    def __init__(
        self,
        backend: Backend,
        shape: ModelShape,
        limits: ModelLimits,
        tokenizer: Any,
        *,
        budget_bytes: int = 1 << 30,
    ) -> None:
        self.backend = backend
        self.shape = shape
        self._tokenizer = tokenizer
        self._budget = KvBudget(budget_bytes)
        self._admission = Admission(limits, tokenizer, self._budget)
        self._streams: OrderedDict[str, _StreamRecord] = OrderedDict()
        self._run = itertools.count()
        self._broken: str | None = None

    @property
    def layout(self) -> Layout:
        """The prompt layout that plans must use."""
        return self._admission.limits.layout

    @property
    def kv_shape(self) -> KVShape:
        """The KV of one token."""
        shape, axes = self.shape, self.layout.positions.axes
        return KVShape(shape.layers, shape.kv_heads, shape.head_dim, axes, getattr(torch, shape.dtype))

    @cached_property
    def key_bias(self) -> torch.Tensor:
        """The bias of every layer's key projection [layers, width]; zeros if the model has no such bias or
        normalises its keys."""
        return torch.cat(self.backend.call("lookout_key_bias"), 1)

    def rows(self, plan: WindowPlan, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K (un-rotated) and V [layers, kv_heads, end - begin, head_dim] of the plan's rows [begin,
        end), on the host. The plan must be the last one run for its stream.

        Raises:
            StreamLostError: The engine holds another window of this stream, or none.
        """
        ranks = (
            self.backend.call("lookout_rows", plan.stream, plan.digest, begin, end)
            if self.held(plan.stream) == plan.digest
            else [None]
        )
        if any(rank is None for rank in ranks):
            raise StreamLostError(
                f"{plan.stream}: the workers do not hold window {plan.window}: take a block's KV right after "
                "its window was run"
            )
        keys, values = zip(*ranks, strict=True)
        return torch.cat(keys, 1), torch.cat(values, 1)

    def close_stream(self, stream: str) -> None:
        """Free a stream's KV on every worker."""
        self._budget.release(stream)
        if self._streams.pop(stream, None) is not None:
            self.backend.call("lookout_release", [], [stream])

    @property
    def kv_budget(self) -> KvBudget:
        """Bytes of KV that streams hold between windows, and their limit."""
        return self._budget

    def held(self, stream: str) -> str | None:
        """The digest of the plan whose KV is held for a stream; None: plan a key window."""
        record = self._streams.get(stream)
        return None if record is None else record.digest

    def memory(self) -> list[StreamMemory]:
        """List what is kept for every stream over all ranks, least recently used first."""
        per_rank = self.backend.call("lookout_memory")
        return [
            StreamMemory(name, stream.window, stream.rows, sum(rank.get(name, 0) for rank in per_rank), 0)
            for name, stream in self._streams.items()
        ]

    def close(self) -> None:
        """Free every stream and stop vLLM."""
        for stream in list(self._streams):
            self.close_stream(stream)
        self.backend.close()

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """Execute windows of several streams, one per stream; errors are returned in the stream's answer.

        Raises:
            DeviceError: The device failed permanently.
        """
        if self._broken is not None:
            raise DeviceError(self._broken)
        return run_batch(requests, self._admit, self._batch)

    def ask(self, plan: WindowPlan, questions: Sequence[Question]) -> WindowAnswer:
        """See `AskingEngine.ask`."""
        with self._over_held(plan, questions) as work:
            work.outputs = self.backend.generate(
                [self._call(work, place, ask=True) for place in range(len(work.suffixes))]
            )
            self._check_asked(work)
            answer = self._answer(work, keep_failed=True)
        return answer.unwrap()

    def write(
        self,
        plan: WindowPlan,
        question: str,
        settings: TextSettings,
        going: Callable[[], bool] = lambda: True,
    ) -> Generator[str, None, Cost]:
        """See `AskingEngine.write`. The question's rows are computed once; each step after that adds one
        token."""
        check_writable(question)
        with self._over_held(plan, [Question("", question, describe=settings.tokens)]) as work:
            buffer = TextBuffer(self._decoded, settings.stop)
            call = replace(
                self._call(work, 0, ask=True),
                tokens=settings.tokens,
                stop=self.layout.stop,
                temperature=settings.temperature,
                seed=settings.seed,
                schema=settings.schema,
            )
            count = 0
            for token in self.backend.stream(call):
                self._check_asked(work)
                if token in self.layout.stop or not going():
                    break
                count += 1
                if piece := buffer.add(token):
                    yield piece
                if buffer.over:
                    break
            if piece := buffer.end():
                yield piece
            # Decoding keeps its KV, so each row is computed once.
            spent = written_flops(self.shape, plan.rows, len(work.suffixes[0]) + count)
            return replace(self._cost(work), flops={"describe": spent})

    @contextmanager
    def _over_held(self, plan: WindowPlan, questions: Sequence[Question]) -> Iterator[_Work]:
        """Prepare work over the held window. Whatever fails, the window's KV does not change.

        Raises:
            EngineError: The questions cannot be computed, or the window is not held.
        """
        if self._broken is not None:
            raise DeviceError(self._broken)
        request = WindowRequest(held_window(plan), (), questions)
        suffixes = self._admission.suffixes(request)
        self._admission.check(request, suffixes, self._streams.get(plan.stream))
        key = self._key(plan)
        work = _Work(0, request, suffixes, self._nodes(request), key, salt=key)
        try:
            self.backend.call("lookout_admit", [self._inputs(work)])
            yield work
        except FAILURES as error:
            if isinstance(error, EngineError):
                raise
            self._fault(error, alone=False)
            raise EngineError(
                f"{plan.stream}: the question failed ({type(error).__name__}: {error}); window "
                f"{plan.window} is still held"
            ) from error
        finally:
            self.backend.abort()
            self.backend.call("lookout_release", [key], [])

    def _check_asked(self, work: _Work) -> None:
        """Check that the workers could load the window for a question.

        Raises:
            RuntimeError: A worker could not load it.
        """
        for cause in self._failures([work]).values():
            raise RuntimeError(cause)

    def _admit(self, index: int, request: WindowRequest, batch: Sequence[_Work]) -> _Work | None:
        plan, suffixes = request.plan, self._admission.suffixes(request)
        self._admission.check(request, suffixes, self._streams.get(plan.stream))
        key = self._key(plan)
        work = _Work(index, request, suffixes, self._nodes(request), key, salt=key)
        size, running = plan.rows * self.shape.row_bytes, {member.name for member in batch}
        victims = self._admission.reserve(plan, work.name, size, running | {plan.stream})
        if victims is None and not batch:
            victims = self._admission.reserve(plan, work.name, size, ())
        if victims is None:
            return None
        for victim in victims:
            log.info("KV of a stream dropped", stream=victim, reason="KV budget")
            self.close_stream(victim)
        return work

    def _batch(self, works: Sequence[_Work]) -> list[WindowAnswer]:
        """Execute admitted work, then remove KV that is not kept from the budget."""
        try:
            return self._execute(works) if works else []
        finally:
            for work in works:
                if not work.request.keep:
                    self._budget.release(work.name)

    def _execute(self, works: Sequence[_Work]) -> list[WindowAnswer]:
        """Run a batch.

        If memory runs out, the batch runs again in two halves; a single window runs again after the KV of all
        other streams is dropped. After any other failure, the streams of the batch run again one by one. No
        KV has moved by then, so every stream can run again, under a new key.

        Raises:
            DeviceError: The device failed permanently, or has no memory for a single window.
        """
        try:
            self._windows(works)
        except FAILURES as error:
            # Do this first: a request left over from a failed step keeps its pages, and later steps wait.
            self._abandon(works, error)
            memory = self._fault(error, alone=works[0].alone) is Fault.MEMORY
            if len(works) > 1 or memory:
                return self._again(works, halve=memory)
            works[0].error = f"{type(error).__name__}: {error}"
        short = [work for work in works if work.error is not None and self._is_short(work)]
        self._guarded(works, self._questions)
        self._guarded(works, self._describe)
        spare = [work.name for work in works if not work.request.keep]
        self.backend.call("lookout_release", [work.key for work in works], spare)
        answers = [self._answer(work) for work in works if work not in short]
        if any(isinstance(answer.error, StreamFailedError) for answer in answers):
            self.backend.call("lookout_clean")
        outcomes = iter(answers)
        return [self._retried(work) if work in short else next(outcomes) for work in works]

    def _is_short(self, work: _Work) -> bool:
        """Whether a worker had no memory for a window. Raises DeviceError if the window ran alone."""
        return self._fault(RuntimeError(work.error), alone=work.alone) is Fault.MEMORY

    def _retried(self, work: _Work) -> WindowAnswer:
        """Run a window again, alone, and return its answer."""
        return self._again([replace(work, error=None, outputs=[])], halve=True)[0]

    def _fault(self, error: Exception, *, alone: bool) -> Fault:
        """Return the kind of a failure. Raises DeviceError if nothing more can run."""
        fault = fault_of(error)
        if fault is Fault.DEVICE or (fault is Fault.MEMORY and alone):
            self._broken = f"the device failed ({type(error).__name__}: {error}): restart the process"
            raise DeviceError(self._broken) from error
        return fault

    def _again(self, works: Sequence[_Work], *, halve: bool) -> list[WindowAnswer]:
        """Run the work of a failed batch again, in halves or each stream alone."""
        single = len(works) == 1
        if single:
            for stream in list(self._streams):
                if stream != works[0].plan.stream:
                    self.close_stream(stream)
        keys = [self._key(work.plan) for work in works]
        again = [
            replace(work, key=key, salt=key, alone=single, outputs=[])
            for work, key in zip(works, keys, strict=True)
        ]
        cut = len(works) // 2 if halve and not single else 1
        parts = [again[:cut], again[cut:]] if halve and not single else [[work] for work in again]
        return [answer for part in parts for answer in self._execute(part)]

    def _guarded(self, works: Sequence[_Work], step: Callable[[Sequence[_Work]], None]) -> None:
        """Run a step over finished windows. If it fails, run it again for each stream on its own, so that
        only the faulty stream is lost."""
        alive = [work for work in works if work.error is None]
        try:
            step(alive)
            causes = self._failures(alive)
        except FAILURES as error:
            self.backend.abort()
            self._fault(error, alone=False)
            self._failures(alive)
            causes = dict.fromkeys((work.key for work in alive), f"{type(error).__name__}: {error}")
        for work in alive:
            if work.key not in causes:
                continue
            self._fault(RuntimeError(causes[work.key]), alone=False)
            if len(alive) == 1:
                work.error = causes[work.key]
            else:
                # vLLM has cached the blocks that the failed step should have filled: a new salt avoids them.
                work.salt = self._key(work.plan)
                self._guarded([work], step)

    def _failures(self, works: Sequence[_Work]) -> dict[str, str]:
        """Return why workers could not load KV, by the work's key. The step of such work ran over pages that
        contain other rows, so its answers are void."""
        causes: dict[str, str] = {}
        for rank in self.backend.call("lookout_failures", [work.key for work in works]):
            causes = {**rank, **causes}
        return causes

    def _abandon(self, works: Sequence[_Work], error: Exception) -> None:
        log.warning("a batch failed", error=str(error), streams=len(works))
        self.backend.abort()
        self.backend.call("lookout_release", [work.key for work in works], [])

    def _key(self, plan: WindowPlan) -> str:
        """Return a unique name for one run of a window; it salts the prefix cache."""
        return f"{plan.salt}#{next(self._run)}"

    def _windows(self, works: Sequence[_Work]) -> None:
        """Compute every window with its first question, and keep its KV."""
        self.backend.call("lookout_admit", [self._inputs(work) for work in works])
        busy = [work for work in works if work.plan.compute or work.suffixes]
        calls = [self._call(work, 0) for work in busy]
        for work, output in zip(busy, self.backend.generate(calls), strict=True):
            if work.suffixes:
                work.outputs.append(output)
        for rank in self.backend.call("lookout_commit", [(work.key, work.name) for work in works]):
            for work in works:
                work.error = work.error or rank.get(work.key)
        for work in works:
            if work.error is None and work.request.keep:
                plan = work.plan
                self._streams[plan.stream] = _StreamRecord(plan.window, plan.digest, plan.rows)
                self._streams.move_to_end(plan.stream)

    def _questions(self, works: Sequence[_Work]) -> None:
        """Run the questions after the first, each over the finished window."""
        for work in works:
            del work.outputs[1:]  # left by a failed attempt
        pairs = [(work, place) for work in works for place in range(1, len(work.suffixes))]
        calls = [self._call(work, place, ask=True) for work, place in pairs]
        for (work, _), output in zip(pairs, self.backend.generate(calls), strict=True):
            work.outputs.append(output)

    def _describe(self, works: Sequence[_Work]) -> None:
        """Write text for the questions that were answered Yes and ask for text, greedily."""
        layout = self.layout
        calls: list[tuple[_Work, int, EngineCall]] = []
        for work in works:
            work.texts.clear()  # left by a failed attempt
            for place, question in enumerate(work.request.questions):
                describes = question.describe > 0 and self._asked(work)[place].tree is None
                if describes and self._pair(work.outputs[place])[0] > 0.5:
                    call = self._call(work, place, layout.yes, ask=True)
                    calls.append((work, place, replace(call, tokens=question.describe, stop=layout.stop)))
        outputs = self.backend.generate([call for *_, call in calls])
        for (work, place, _), output in zip(calls, outputs, strict=True):
            tokens = itertools.takewhile(lambda token: token not in layout.stop, output.tokens)
            work.texts[place] = (layout.yes, *tokens)

    def _asked(self, work: _Work) -> list[AskedQuestion]:
        return self._admission.questions(work.request)

    def _call(self, work: _Work, place: int, *more: int, ask: bool = False) -> EngineCall:
        """Build the request for the suffix at `place` and the tokens `more` after it. If there are no
        suffixes, the request is for the window alone."""
        suffix = (*work.suffixes[place], *more) if work.suffixes else ()
        node = work.nodes.get(place)
        return EngineCall(
            window=work.key,
            held=work.name if ask else work.plan.stream,
            prompt=work.prompt(suffix),
            load=work.plan.rows if ask else work.load,
            ask=ask,
            salt=work.salt,
            newline=work.newlines(suffix),
            answers=(self.layout.yes, self.layout.no) if node is None else node.tokens,
        )

    def _nodes(self, request: WindowRequest) -> dict[int, AnswerNode]:
        """Return the answer nodes of structured questions, by the indices of their suffixes."""
        questions = self._admission.questions(request)
        return {
            place: node
            for question, places in zip(questions, places_of(questions), strict=True)
            if question.tree is not None
            for place, node in zip(places, question.tree.nodes, strict=True)
        }

    def _inputs(self, work: _Work) -> WindowInputs:
        plan = work.plan
        rows, embeddings, deepstack = self._visual(work)
        ids = np.where(plan.token_ids < 0, 0, plan.token_ids)
        return WindowInputs(
            key=work.key,
            stream=plan.stream,
            digest=plan.digest,
            parent=plan.parent,
            positions=torch.from_numpy(plan.positions.copy()),
            question_position=plan.question_position,
            token_ids=torch.from_numpy(ids),
            visual_rows=rows,
            embeddings=embeddings,
            deepstack=deepstack,
            source=torch.from_numpy(plan.source.copy()),
            computed=torch.from_numpy(rows_in(plan.compute)),
            load=work.load,
            runs=tuple((run.start, run.stop) for run in plan.compute if run.start < work.load),
        )

    def _visual(self, work: _Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the visual rows of frames with rows to compute, their embeddings and DeepStack features."""
        blocks = {block.index: block for block in work.request.blocks}
        computed = rows_in(work.plan.compute)
        rows, tokens, deep = [], [], []
        for part in work.plan.parts[1:]:
            low, high = np.searchsorted(computed, (part.visual_start, part.visual_stop))
            if low == high:
                continue
            frame = blocks[part.block].frames[part.frame]
            rows.append(torch.arange(part.visual_start, part.visual_stop))
            tokens.append(frame.tokens)
            if frame.deepstack is not None:
                deep.append(frame.deepstack)
        if not rows:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, self.shape.hidden), None
        return torch.cat(rows), torch.cat(tokens), torch.cat(deep, 1) if deep else None

    def _pair(self, output: EngineOutput) -> tuple[float, float, float]:
        """p(yes) and the logits of Yes and No."""
        pair = torch.tensor(
            [output.logits[self.layout.yes], output.logits[self.layout.no]], dtype=torch.float32
        )
        yes, no = pair.tolist()
        return float(pair.softmax(0)[0]), yes, no

    def _answer(self, work: _Work, *, keep_failed: bool = False) -> WindowAnswer:
        """Build the answer of finished work. A stream that failed is dropped, unless its KV cannot be the
        cause (`keep_failed`)."""
        plan = work.plan
        answers = self._replies(work) if work.error is None else ()
        if not all(np.isfinite((answer.yes_logit, answer.no_logit)).all() for answer in answers):
            work.error = "its logits are not finite: check the embeddings"
        if work.error is not None and keep_failed:
            return refused(work.request, EngineError(f"{plan.stream}: the question failed ({work.error})"))
        if work.error is not None:
            return self._failed(work)
        out = WindowAnswer(plan.stream, plan.window, answers, self._cost(work))
        for place, tokens in work.texts.items():
            # Decoding keeps its KV, so each row is computed once, except the question's rows: those twice.
            flops = written_flops(self.shape, plan.rows, len(work.suffixes[place]) + len(tokens))
            out = with_text(out, place, self._decoded(tokens), flops)
        return out

    def _replies(self, work: _Work) -> tuple[Answer, ...]:
        """Build answers from the outputs of all suffixes."""
        tokens, answers = self._asked(work), []
        for question, own, places in zip(work.request.questions, tokens, places_of(tokens), strict=True):
            if own.tree is None:
                pair = self._pair(work.outputs[places[0]])
                answers.append(Answer(question.id, *pair, tokens=own.tokens))
                continue
            logits = [
                [work.outputs[place].logits[token] for token in node.tokens]
                for place, node in zip(places, own.tree.nodes, strict=True)
            ]
            answers.append(structured_answer(question.id, own, logits))
        return tuple(answers)

    def _failed(self, work: _Work) -> WindowAnswer:
        plan = work.plan
        if work.request.keep:
            self._streams.pop(plan.stream, None)
            self._budget.release(plan.stream)
            self.backend.call("lookout_release", [], [plan.stream])
        error = StreamFailedError(
            f"{plan.stream}: window {plan.window} failed ({work.error}); its KV was dropped: plan a key "
            "window"
        )
        return refused(work.request, error)

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _cost(self, work: _Work) -> Cost:
        shape, plan = self.shape, work.plan
        resident = plan.rows * shape.row_bytes if work.request.keep else 0
        return window_cost(plan, [len(suffix) for suffix in work.suffixes], shape, kv_bytes=resident)
