"""The transformers engine: runs many streams' windows as one packed pass over the stock decoder layers."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import structlog
import torch

from lookout.disk import private_folder
from lookout.models.device import dtype_of
from lookout.models.engines.admission import Admission, ModelLimits, refused, run_batch
from lookout.models.engines.asked import (
    AskedQuestion,
    Suffix,
    check_writable,
    places_of,
    structured_answer,
)
from lookout.models.engines.budget import KvBudget
from lookout.models.engines.costs import window_cost, with_text, written_flops
from lookout.models.engines.faults import FAILURES, Fault, fault_of
from lookout.models.engines.sizing import PASS_ROWS, WINDOW_ROWS, kv_budget
from lookout.models.engines.text import TextBuffer
from lookout.models.engines.transformers.attention import attend_through
from lookout.models.engines.transformers.forward import PassWork, forward
from lookout.models.engines.transformers.key_bias import key_bias
from lookout.models.engines.transformers.kv import StreamKV
from lookout.models.engines.transformers.model import LanguageModel, load_language_model
from lookout.models.engines.transformers.question_kv import QuestionKV
from lookout.models.engines.types import (
    Answer,
    AttendedFrame,
    Cost,
    DeviceError,
    EngineError,
    Question,
    StreamFailedError,
    StreamLostError,
    StreamMemory,
    TextSettings,
    UnsupportedModelError,
    WindowAnswer,
    WindowRequest,
)
from lookout.models.families import load_layout, load_tokenizer
from lookout.models.windows import Layout, WindowError, WindowPlan, held_window, rows_in
from lookout.past.memory import KVShape

log = structlog.get_logger(__name__)
GIB = 1 << 30
EVIDENCE = 3
"""Maximum number of a window's frames that an answer lists."""


def load_engine(
    checkpoint: Path | str,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    budget_bytes: int | None = None,
    spill_dir: Path | str | None = None,
    rows_per_pass: int = PASS_ROWS,
    layout: Layout | None = None,
) -> TransformersEngine:
    """Load a stock checkpoint folder (of a family in `lookout.models.families`) as a window engine.

    Args:
        checkpoint: Folder of the checkpoint.
        device: Where it runs.
        dtype: Data type of weights, embeddings and KV; None: `lookout.models.device.default_dtype`.
        budget_bytes: Limit on the KV of all streams on the device. If it is too small for all, a stable
            subset stays (`lookout.models.engines.budget`). None: `lookout.models.engines.sizing.kv_budget`.
        spill_dir: Folder for evicted streams' KV, which is read back bit for bit. None: that KV is dropped.
        rows_per_pass: Maximum number of rows of one pass; a larger batch runs in several passes.
        layout: Replaces the checkpoint's prompt layout.

    Raises:
        UnsupportedModelError: Window plans do not support the checkpoint.
    """
    kind = dtype_of(dtype, device)
    try:
        prompt = layout or load_layout(checkpoint)
        tokenizer = load_tokenizer(Path(checkpoint))
    except WindowError as error:
        raise UnsupportedModelError(str(error)) from error
    # Before the model is loaded: on a GPU the budget is the memory that the model leaves.
    budget = kv_budget(
        Path(checkpoint),
        str(device),
        str(kind).removeprefix("torch."),
        kv_bytes=budget_bytes,
        pass_rows=rows_per_pass,
        window_rows=WINDOW_ROWS,
    )
    model = load_language_model(checkpoint, torch.device(device), kind)
    return TransformersEngine(
        model,
        prompt,
        tokenizer,
        budget_bytes=budget,
        spill_dir=spill_dir,
        rows_per_pass=rows_per_pass,
    )


class TransformersEngine:
    """Executes window plans with the stock decoder layers (`Engine` protocol).

    KV is kept canonical (K un-rotated) in prompt order, once per stream. One pass computes all the rows to
    compute of the batch's windows, and all questions, packed together. The KV of questions is never stored.
    Calls from several threads run one after the other.
    """

    def __init__(
        self,
        model: LanguageModel,
        layout: Layout,
        tokenizer: Any,
        *,
        budget_bytes: int = GIB,
        spill_dir: Path | str | None = None,
        rows_per_pass: int = 16384,
    ) -> None:
        self.model = model
        self._layout = layout
        self._tokenizer = tokenizer
        self._budget = KvBudget(budget_bytes)
        limits = ModelLimits(layout, model.hidden, model.deepstack, model.limit)
        self._admission = Admission(limits, tokenizer, self._budget)
        self._broken: str | None = None
        self._rows_per_pass = rows_per_pass
        self._lock = threading.RLock()
        self._streams: OrderedDict[str, StreamKV] = OrderedDict()
        self._spill = None
        if spill_dir is not None:
            self._spill = Path(tempfile.mkdtemp(prefix="kv-", dir=private_folder(spill_dir)))
        attend_through(model.config)
        self._answer_rows = torch.tensor([layout.yes, layout.no], device=model.device)

    @property
    def layout(self) -> Layout:
        """The prompt layout that plans must use."""
        return self._layout

    @property
    def device_bytes(self) -> int:
        """KV bytes of all streams on the device."""
        return sum(kv.device_bytes for kv in self._streams.values())

    def asked(self, question: str) -> AskedQuestion:
        """Return a question as tokens.

        Raises:
            PlanError: The question cannot be asked.
        """
        return self._admission.asked(question)

    def suffix(self, question: str) -> Suffix:
        """Return the token ids that a question adds after a window; for a structured question, those up to
        the first point where its answers diverge."""
        return self.asked(question).suffixes[0]

    def text(self, ids: Sequence[int]) -> str:
        """Token ids as text, without the tokenizer's control tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Lock the model for one caller, with gradients disabled; for code that runs the model's layers
        itself."""
        with self._lock, torch.inference_mode():
            yield

    def kv(self, stream: str) -> StreamKV:
        """The KV of a stream, for tests and measurements.

        Raises:
            StreamLostError: The stream is not kept.
        """
        if stream not in self._streams:
            raise StreamLostError(f"{stream}: the engine holds no KV of this stream")
        return self._streams[stream]

    @property
    def kv_shape(self) -> KVShape:
        """The KV of one token."""
        model = self.model
        axes = self._layout.positions.axes
        return KVShape(len(model.layers), model.kv_heads, model.head_dim, axes, model.dtype)

    @property
    def key_bias(self) -> torch.Tensor:
        """The bias of every layer's key projection [layers, width]; zeros if the model has no such bias or
        normalises its keys."""
        return key_bias(self.model)

    def rows(self, plan: WindowPlan, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K (un-rotated) and V [layers, kv_heads, end - begin, head_dim] of the plan's rows [begin,
        end), on the host. The plan must be the last one run for its stream.

        Raises:
            StreamLostError: The engine holds another window of this stream, or none.
        """
        with self._lock:
            kv = self.kv(plan.stream)
            if kv.digest != plan.digest or not kv.keys:
                raise StreamLostError(
                    f"{plan.stream}: the engine holds window {kv.window}, not window {plan.window}: take a "
                    "block's KV right after its window was run"
                )
            keys, values = (
                torch.stack([part[:, begin:end] for part in parts]).cpu() for parts in (kv.keys, kv.values)
            )
            return keys, values

    def close_stream(self, stream: str) -> None:
        """Free a stream's KV on the device and on the disk tier."""
        with self._lock:
            kv = self._streams.pop(stream, None)
            self._budget.release(stream)
            if kv is not None:
                # A running batch may still refer to this KV; once it is empty, no plan can continue it.
                kv.drop()

    @property
    def kv_budget(self) -> KvBudget:
        """Bytes of KV that streams hold between windows, and their limit."""
        return self._budget

    def held(self, stream: str) -> str | None:
        """The digest of the plan whose KV is held for a stream; None: plan a key window."""
        with self._lock:
            kv = self._streams.get(stream)
            return kv.digest or None if kv is not None else None

    def memory(self) -> list[StreamMemory]:
        """List what every stream holds, least recently used first."""
        with self._lock:
            return [
                StreamMemory(kv.stream, kv.window, kv.rows, kv.device_bytes, kv.spilled_bytes)
                for kv in self._streams.values()
            ]

    def close(self) -> None:
        """Free every stream and the disk tier."""
        for stream in list(self._streams):
            self.close_stream(stream)
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """Execute windows of several streams, one per stream; errors are returned in the stream's answer.

        Raises:
            DeviceError: The device failed permanently.
        """
        with self.in_turn():
            if self._broken is not None:
                raise DeviceError(self._broken)
            return run_batch(requests, self._admit, self._passes)

    def ask(self, plan: WindowPlan, questions: Sequence[Question]) -> WindowAnswer:
        """See `AskingEngine.ask`."""
        with self.in_turn():
            work = self._over_held(plan, questions)
            logits = self._verdict(work, self._asked(work))
            if not logits.finite:
                raise EngineError(f"{plan.stream}: the answer is not finite; check the embeddings")
            return WindowAnswer(plan.stream, plan.window, self._replies(work, logits), self._cost(work))

    def write(
        self,
        plan: WindowPlan,
        question: str,
        settings: TextSettings,
        going: Callable[[], bool] = lambda: True,
    ) -> Generator[str, None, Cost]:
        """See `AskingEngine.write`. The question's rows are computed once; each step after that adds one
        token."""
        if settings.schema is not None:
            raise UnsupportedModelError("a JSON schema needs the vLLM engine; this one writes free text")
        check_writable(question)
        with self.in_turn():
            work = self._over_held(plan, [Question("", question, describe=settings.tokens)])
            work.past = QuestionKV()
            buffer, draw = TextBuffer(self.text, settings.stop), torch.Generator().manual_seed(settings.seed)
            step, rows = work, 0
            for _ in range(settings.tokens):
                if buffer.over or not going():
                    break
                logits = self.model.head(self._asked(step))[0].float().cpu()
                rows += len(step.suffixes[0])
                token = _drawn(logits, settings.temperature, draw)
                if token in self._layout.stop:
                    break
                step = _continued(work, {0: token})
                if piece := buffer.add(token):
                    yield piece
            if piece := buffer.end():
                yield piece
            spent = written_flops(self.model.shape, plan.rows, rows)
            return replace(self._cost(work), flops={"describe": spent})

    def _over_held(self, plan: WindowPlan, questions: Sequence[Question]) -> PassWork:
        """Prepare work that computes questions over the held window.

        Raises:
            EngineError: The questions cannot be computed, or the window is not held.
        """
        if self._broken is not None:
            raise DeviceError(self._broken)
        request = WindowRequest(held_window(plan), (), questions)
        suffixes = self._admission.suffixes(request)
        kv = self._streams.get(plan.stream)
        self._admission.check(request, suffixes, kv)
        assert kv is not None
        if kv.spilled is not None:
            size = kv.bytes_for(self.model, plan.rows)
            for victim in self._admission.reserve(plan, plan.stream, size, ()) or ():
                self._evict(victim)
            kv.restore(self.model.device)
        return PassWork(0, request, suffixes, np.zeros(0, np.int64), kv, plan.stream)

    def _asked(self, work: PassWork) -> torch.Tensor:
        """Compute the normed states [questions, hidden] of questions over a held window.

        Whatever fails, the window's KV does not change.

        Raises:
            EngineError: The states cannot be computed.
        """
        try:
            return self._forward([work])[0]
        except FAILURES as error:
            cause, fault = error, fault_of(error)
        if fault is Fault.MEMORY:
            self._free_others(work)
            try:
                return self._forward([work])[0]
            except FAILURES as error:
                cause, fault = error, fault_of(error)
        text = f"{type(cause).__name__}: {cause}"
        if fault is not Fault.WORK:
            self._fail_for_good(text, cause)
        raise EngineError(
            f"{work.plan.stream}: the question failed ({text}); window {work.plan.window} is still held"
        ) from cause

    # Admission: every rejection comes before any KV moves.

    def _admit(self, index: int, request: WindowRequest, batch: Sequence[PassWork]) -> PassWork | None:
        plan, suffixes = request.plan, self._admission.suffixes(request)
        kv = self._streams.get(plan.stream)
        self._admission.check(request, suffixes, kv)
        own = kv if request.keep and kv is not None else StreamKV(plan.stream)
        name = plan.stream if request.keep else f"{plan.stream}!"
        size, running = own.bytes_for(self.model, plan.rows), {work.name for work in batch}
        victims = self._admission.reserve(plan, name, size, running | {plan.stream})
        if victims is None and not batch:
            victims = self._admission.reserve(plan, name, size, ())
        if victims is None:
            return None
        for victim in victims:
            self._evict(victim)
        if request.keep:
            self._streams[plan.stream] = own
            self._streams.move_to_end(plan.stream)
        return PassWork(index, request, suffixes, rows_in(plan.compute), own, name)

    def _evict(self, stream: str) -> None:
        """Remove a stream's KV from the device: move it to the disk tier, or drop it.

        Raises:
            DeviceError: The device failed permanently.
        """
        kv, reason = self._streams[stream], "KV budget"
        self._budget.release(stream)
        if kv.spilled is not None:
            return
        if self._spill is not None and (kv.digest or kv.placed):
            try:
                kv.spill(self._spill)
                return
            except (OSError, *FAILURES) as error:
                if fault_of(error) is Fault.DEVICE:
                    self._fail_for_good(f"{type(error).__name__}: {error}", error)
                reason = f"KV budget, and the disk tier failed: {error}"
        log.info("KV of a stream dropped", stream=stream, reason=reason, bytes=kv.device_bytes)
        self.close_stream(stream)

    # Execution.

    def _passes(self, works: Sequence[PassWork]) -> list[WindowAnswer]:
        """Execute admitted work in passes of bounded size."""
        try:
            return [
                answer for group in _groups(works, self._rows_per_pass) for answer in self._execute(group)
            ]
        finally:
            for work in works:
                if not work.request.keep:
                    self._budget.release(work.name)

    def _execute(self, works: Sequence[PassWork], alone: bool = False) -> list[WindowAnswer]:
        """Run a pass.

        If memory runs out, the pass runs again in two halves; a single window runs again after the KV of all
        other streams has left the device (`alone`). After any other failure, the streams of the pass run
        again one by one.

        Raises:
            DeviceError: The device failed permanently, or has no memory for a single window.
        """
        try:
            for work in works:
                written = any(question.describe > 0 for question in work.request.questions)
                work.past = QuestionKV() if written else None
                work.kv.place(self.model, work.plan)
            for work in works:
                work.started = True
            logits = [
                self._verdict(work, last) for work, last in zip(works, self._forward(works), strict=True)
            ]
            return self._describe(works, self._answers(works, logits))
        except FAILURES as error:
            cause, fault = error, fault_of(error)
        text = f"{type(cause).__name__}: {cause}"
        if fault is Fault.DEVICE or (fault is Fault.MEMORY and alone):
            self._fail_for_good(text, cause)
        log.warning("a batch failed", error=text, streams=len(works))
        if len(works) == 1 and (fault is Fault.WORK or not self._repeatable(works[0])):
            return [self._drop(works[0], text)]
        if len(works) == 1:
            self._free_others(works[0])
            return self._execute(works, alone=True)
        cut = len(works) // 2 if fault is Fault.MEMORY else 1
        parts = [works[:cut], works[cut:]] if fault is Fault.MEMORY else [[work] for work in works]
        return [answer for part in parts for answer in self._again(part)]

    def _fail_for_good(self, text: str, cause: Exception) -> NoReturn:
        self._broken = f"the device failed ({text}): restart the process"
        raise DeviceError(self._broken) from cause

    def _again(self, works: Sequence[PassWork]) -> list[WindowAnswer]:
        """Run the work of a failed pass again."""
        lost = [work for work in works if not self._repeatable(work)]
        if not lost:
            return self._execute(works)
        cause = "its rows were chosen from KV that a failed pass has overwritten"
        return [self._drop(work, cause) if work in lost else self._execute([work])[0] for work in works]

    @staticmethod
    def _repeatable(work: PassWork) -> bool:
        """Whether a second pass would compute what the first should have. Not with CacheBlend, which chooses
        rows from the KV that the first pass has overwritten."""
        return not (work.started and work.plan.select is not None)

    def _free_others(self, work: PassWork) -> None:
        """Remove the KV of all other streams from the device."""
        for stream, kv in list(self._streams.items()):
            if kv is not work.kv and kv.keys:
                self._evict(stream)
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _forward(self, works: Sequence[PassWork]) -> list[torch.Tensor]:
        """Run the packed pass; return, for each request, the normed states [questions, hidden] at the
        suffixes' ends."""
        return forward(self.model, works)

    def _verdict(self, work: PassWork, last: torch.Tensor) -> _Logits:
        """Compute logits on the host from states [suffixes, hidden]: with the head's rows for Yes and No and,
        for structured questions, with the rows of their answers' tokens."""
        head, questions = self.model.head.weight, self._admission.questions(work.request)
        pairs = torch.nn.functional.linear(last[: len(questions)], head.index_select(0, self._answer_rows))
        trees = {
            number: question.read(last[places], head)
            for number, (question, places) in enumerate(zip(questions, places_of(questions), strict=True))
            if question.tree is not None
        }
        return _Logits(pairs.float().cpu(), trees)

    def _describe(self, works: Sequence[PassWork], answers: Sequence[WindowAnswer]) -> list[WindowAnswer]:
        """Write text for the questions that were answered Yes and ask for text, greedily, for all streams
        together. A step computes one row per question, over the KV of the window and of the question's
        rows."""
        texts: dict[tuple[int, int], list[int]] = {}
        for index, (work, answer) in enumerate(zip(works, answers, strict=True)):
            for place, reply in enumerate(answer.answers):
                describes = work.request.questions[place].describe > 0 and not reply.shares
                if describes and reply.p_yes > 0.5:
                    texts[index, place] = [self._layout.yes]
        going, rows = list(texts), dict.fromkeys(texts, 0)
        while going:
            indices = [index for index in range(len(works)) if any(key[0] == index for key in going)]
            steps = [
                _continued(works[i], {place: texts[index, place][-1] for index, place in going if index == i})
                for i in indices
            ]
            ids = torch.cat([self.model.head(last).argmax(-1) for last in self._forward(steps)]).tolist()
            still = []
            for key, token in zip(going, ids, strict=True):
                rows[key] += 1
                if token not in self._layout.stop:
                    texts[key].append(token)
                    if len(texts[key]) <= works[key[0]].request.questions[key[1]].describe:
                        still.append(key)
            going = still
        out = list(answers)
        for (index, place), ids in texts.items():
            work = works[index]
            before = work.plan.rows + len(work.suffixes[place])
            flops = written_flops(self.model.shape, before, rows[index, place])
            out[index] = with_text(out[index], place, self.text(ids), flops)
        return out

    def _answers(self, works: Sequence[PassWork], logits: Sequence[_Logits]) -> list[WindowAnswer]:
        out = []
        for work, own in zip(works, logits, strict=True):
            if not own.finite:
                out.append(self._drop(work, "its logits are not finite; check the embeddings"))
                continue
            work.kv.finish(work.plan)
            answers = self._replies(work, own)
            out.append(WindowAnswer(work.plan.stream, work.plan.window, answers, self._cost(work)))
        return out

    def _replies(self, work: PassWork, logits: _Logits) -> tuple[Answer, ...]:
        """Build answers from logits."""
        tokens, frames = self._admission.questions(work.request), self._attended(work)
        yes, pairs = logits.pairs.softmax(-1)[:, 0].tolist(), logits.pairs.tolist()
        answers = []
        for place, question in enumerate(work.request.questions):
            answer = Answer(question.id, yes[place], *pairs[place])
            if place in logits.trees:
                answer = structured_answer(question.id, tokens[place], logits.trees[place])
            answers.append(replace(answer, tokens=tokens[place].tokens, frames=frames[place]))
        return tuple(answers)

    def _attended(self, work: PassWork) -> list[tuple[AttendedFrame, ...]]:
        """Return, for each suffix, the frames of the window whose tokens it attends to most, best first.

        A frame ranks by its most attended token, not by the sum. Whole frames have so many tokens that the
        little attention on their background outweighs a subject. (Measured: all of 18 pictures show the
        subject if frames are ranked by their largest token, but only 13 if ranked by the sum.)
        """
        parts = [part for part in work.plan.parts[1:] if part.visual_stop > part.visual_start]
        if work.attention is None or not parts:
            return [()] * len(work.suffixes)
        weight = work.attention.double().cpu().numpy() / (len(self.model.layers) * self.model.heads)
        rows = np.concatenate([np.arange(part.visual_start, part.visual_stop) for part in parts])
        counts = np.array([part.visual_stop - part.visual_start for part in parts])
        shares = np.maximum.reduceat(weight[:, rows], np.cumsum(counts) - counts, axis=1)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :EVIDENCE]
        return [
            tuple(AttendedFrame(parts[i].block, parts[i].frame, round(float(own[i]), 4)) for i in best)
            for own, best in zip(shares, order.tolist(), strict=True)
        ]

    def _cost(self, work: PassWork) -> Cost:
        return window_cost(
            work.plan,
            [len(suffix) for suffix in work.suffixes],
            self.model.shape,
            kv_bytes=work.kv.device_bytes if work.request.keep else 0,
        )

    def _drop(self, work: PassWork, cause: str) -> WindowAnswer:
        if work.request.keep:
            self.close_stream(work.plan.stream)
        return refused(
            work.request,
            StreamFailedError(
                f"{work.plan.stream}: window {work.plan.window} failed ({cause}); its KV was dropped: "
                "plan a key window"
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Logits:
    """The logits of a window's questions.

    Attributes:
        pairs: Logits of Yes and No for each question, float32 [questions, 2] on the host.
        trees: The logits of every node's tokens, by the number of the structured question.
    """

    pairs: torch.Tensor
    trees: dict[int, list[list[float]]]

    @property
    def finite(self) -> bool:
        """Whether all logits are finite."""
        own = (logit for nodes in self.trees.values() for node in nodes for logit in node)
        return bool(torch.isfinite(self.pairs).all()) and all(map(math.isfinite, own))


def _groups(works: Sequence[PassWork], limit: int) -> Iterator[list[PassWork]]:
    """Divide work into passes of at most `limit` rows, but at least one stream each, so that activations stay
    bounded."""
    group: list[PassWork] = []
    rows = 0
    for work in works:
        size = len(work.rows) + sum(len(suffix) for suffix in work.suffixes)
        if group and rows + size > limit:
            yield group
            group, rows = [], 0
        group.append(work)
        rows += size
    if group:
        yield group


def _drawn(logits: torch.Tensor, temperature: float, draw: torch.Generator) -> int:
    """Choose the next token from logits [vocabulary]."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw))


def _continued(work: PassWork, tokens: Mapping[int, int]) -> PassWork:
    """Return work that computes no rows of the window, but one more token of some questions, by the
    question's number."""
    plan = replace(work.plan, compute=(), layers=None, select=None)
    request = replace(work.request, plan=plan)
    suffixes: list[Suffix] = [(token,) for token in tokens.values()]
    rows = np.zeros(0, np.int64)
    return replace(work, request=request, suffixes=suffixes, numbers=[*tokens], rows=rows, share=None)
