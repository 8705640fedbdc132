"""Answers over a snapshot of a memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from lookout.models import flops
from lookout.models.engines.asked import AskedQuestion, check_writable, structured_answer
from lookout.models.engines.transformers.engine import TransformersEngine
from lookout.models.engines.transformers.memory.attention import AskPass, ManyPass, run_many, run_pass
from lookout.models.engines.transformers.memory.clock import clock
from lookout.models.engines.transformers.memory.layout import ask_layout
from lookout.models.engines.transformers.memory.moving import mover
from lookout.models.engines.transformers.memory.past import PastReader
from lookout.models.engines.transformers.memory.reading import (
    ClusterReader,
    LayerTrace,
    Observer,
    Reader,
)
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.engines.types import Answer, EngineError, Evidence, PositionError
from lookout.past.memory import (
    FrameChoice,
    HistoryError,
    Past,
    Predictor,
    Prefetcher,
    Readable,
    RetrievalSettings,
    Snapshot,
)

EVIDENCE = 8
"""Maximum number of frames listed as evidence."""
SIDE_BY_SIDE = 4
"""Number of pasts read at the same time: as many readers as a holder serves (`MemoryLimits.readers`)."""


@dataclass(frozen=True, slots=True)
class AskCost:
    """The cost of an answer.

    Attributes:
        question_tokens: Rows of the question.
        memory_tokens: Tokens of the memory that were read, mean over layers.
        representatives: Representatives that were read, mean over layers.
        window_tokens: Rows of the window that were read.
        bytes_moved: Bytes moved to the device, over all layers.
        copies: Copies to the device, over all layers.
        flops: FLOPs to compute the question's rows and to compare clusters with their query.
        first_token_s: Seconds to the first token.
        retrieve_s: Seconds spent choosing clusters, over all layers.
        move_s: Seconds spent moving clusters to the device, over all layers.
        attend_s: Seconds spent in attention, over all layers, including that of written text.
    """

    question_tokens: int
    memory_tokens: float
    representatives: float
    window_tokens: int
    bytes_moved: int
    copies: int
    flops: int
    first_token_s: float
    retrieve_s: float
    move_s: float
    attend_s: float


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The answer to a question about the past.

    Attributes:
        covered_from_us: Stream time from which on the memory had KV when the question was asked.
        covered_to_us: Stream time of the newest frame.
        evidence: The frames with the most attention, in order of time.
        traces: What each layer read.
        shares: For a structured question, the probability of each allowed answer, in the question's order.
    """

    question: str
    p_yes: float
    yes_logit: float
    no_logit: float
    text: str | None
    evidence: tuple[Evidence, ...]
    covered_from_us: int | None
    covered_to_us: int
    cost: AskCost
    traces: tuple[LayerTrace, ...]
    shares: tuple[float, ...] = ()

    @property
    def fetched(self) -> Mapping[int, tuple[int, ...]]:
        """The clusters that verified retrieval read, by layer."""
        return {layer: trace.ids for layer, trace in enumerate(self.traces) if trace.ids}


def ask(
    engine: TransformersEngine,
    snapshot: Snapshot | Past,
    question: str,
    *,
    retrieval: RetrievalSettings | None = None,
    predictor: Predictor | None = None,
    resident: Callable[[int], bool] = lambda cluster: False,
    since_us: int | None = None,
    until_us: int | None = None,
    describe: int = 0,
    on_text: Callable[[str], None] | None = None,
    reader: Callable[[Sequence[LayerTrace]], Reader] | None = None,
    observer: Observer | None = None,
) -> MemoryAnswer:
    """Answer a question over a snapshot of a camera's memory.

    Args:
        engine: provides the model, its prompt layout and tokenizer; its streams are not touched.
        snapshot: a snapshot of the memory, or a past of chapters, which has its own budgets and time range;
            its content does not change during the call.
        question: the text; the checkpoint's question head and tail are added to it.
        retrieval: budgets.
        predictor: how clusters are prefetched; None: `RESIDUAL` on an accelerator, none on the CPU.
        resident: whether a cluster is already on the device.
        since_us: only frames from this stream time on; `until_us`: only frames before.
        describe: maximum tokens of text to write; 0 for p(yes) alone.
        on_text: called with each piece of the text as it is written.
        reader: makes a replacement for two-stage retrieval (for comparisons).
        observer: receives every layer's attention (for measurements).

    Raises:
        PlanError: the question cannot be asked, or lists its answers although text must be written.
        PositionError: the question would lie beyond the model's positions.
        HistoryError: the memory has no frame in the time range, or retrieval selected none of them.
    """
    if describe:
        check_writable(question)
    how = (retrieval, predictor, resident, describe, on_text, reader, observer)
    asking = _Asking(engine, snapshot, question, *how)
    return asking.run(_allowed(snapshot, since_us, until_us))


def ask_many(
    engine: TransformersEngine,
    pasts: Sequence[Past],
    question: str,
    *,
    since_us: int | None = None,
    until_us: int | None = None,
) -> list[MemoryAnswer | HistoryError]:
    """Answer one question over several pasts, read in parallel, in one pass through the layers.

    An answer equals that of `ask` up to rounding: products over more rows are summed in another order.

    Args:
        engine: As in `ask`.
        pasts: The chapters of each camera.
        question: As in `ask`, but no text is written.
        since_us: As in `ask`, like `until_us`; if both are None, the time range of each past applies.

    Returns:
        Answers in the order of the pasts; an error instead of the answer if a past has no frame in the range
            or could not be read.

    Raises:
        PlanError: The question cannot be asked.
        PositionError: The question would lie beyond the model's positions.
    """
    asked = engine.asked(question)
    out: list[MemoryAnswer | HistoryError | None] = [None] * len(pasts)
    with torch.inference_mode(), contextlib.ExitStack() as moving:
        begun = clock()
        askings: dict[int, tuple[_Asking, FrameChoice]] = {}
        for number, past in enumerate(pasts):
            try:
                allowed = _allowed(past, since_us, until_us)
            except HistoryError as error:
                out[number] = error
            else:
                askings[number] = _Asking(engine, past, question, predictor=Predictor.NONE), allowed
        if not askings:
            return [entry for entry in out if entry is not None]
        pool = moving.enter_context(ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="pasts"))
        rounds, lasts = [], []
        for ids in asked.suffixes:
            states = [asking.state(moving, len(ids), allowed) for asking, allowed in askings.values()]
            rounds.append(ManyPass(states, len(ids), pool))
            lasts.append(run_many(engine.model, rounds[-1], ids))
        spent = clock() - begun
        for place, (number, (asking, _)) in enumerate(askings.items()):
            try:
                lost = next((many.lost[place] for many in rounds if place in many.lost), None)
                answer = lost or asking.answered(
                    rounds[0].passes[place],
                    asked,
                    asking.read(asked, [last[place] for last in lasts]),
                    spent,
                )
            except HistoryError as error:
                answer = error
            out[number] = answer
    return [entry for entry in out if entry is not None]


@dataclass(frozen=True, slots=True)
class _Asking:
    """The arguments of `ask`."""

    engine: TransformersEngine
    snapshot: Snapshot | Past
    question: str
    retrieval: RetrievalSettings | None = None
    predictor: Predictor | None = None
    resident: Callable[[int], bool] = lambda cluster: False
    describe: int = 0
    on_text: Callable[[str], None] | None = None
    reader: Callable[[Sequence[LayerTrace]], Reader] | None = None
    observer: Observer | None = None

    def run(self, allowed: FrameChoice) -> MemoryAnswer:
        """Answer over the allowed frames."""
        engine, model = self.engine, self.engine.model
        asked, lasts, states = engine.asked(self.question), [], []
        with torch.inference_mode(), contextlib.ExitStack() as moving:
            begun = clock()
            for ids in asked.suffixes:
                states.append(self.state(moving, len(ids), allowed))
                lasts.append(run_pass(model, states[-1], ids, states[-1].layout.question))
            state, answer = states[0], self.read(asked, lasts)
            spent = clock() - begun  # up to the first token: text is written later
            text = None
            if self.describe:
                end = state.layout.question + len(asked.suffixes[0])
                text = "".join(_write(engine, state, lasts[0], end, self.describe, self.on_text))
            return self.answered(state, asked, answer, spent, text)

    def state(self, moving: contextlib.ExitStack, rows: int, allowed: FrameChoice) -> AskPass:
        """Prepare a pass for a question of `rows` rows: its positions, and the reader of the past."""
        snapshot, model = self.snapshot, self.engine.model
        settings = snapshot.settings if isinstance(snapshot, Past) else self.retrieval or RetrievalSettings()
        predictor = self.predictor
        if predictor is None:
            predictor = Predictor.NONE if model.device.type == "cpu" else Predictor.RESIDUAL
        layout = ask_layout(snapshot, settings.span, allowed, self.engine.layout.positions)
        room = rows + self.describe
        _check_positions(model, layout.question + room)
        traces = [LayerTrace() for _ in model.layers]
        reading = self._reading(moving, settings, predictor, traces, allowed)
        return AskPass(model, snapshot, layout, reading, traces, room, predictor, self.observer)

    def answered(
        self, state: AskPass, asked: AskedQuestion, answer: Answer, spent: float, text: str | None = None
    ) -> MemoryAnswer:
        """Build the answer from a pass that has run.

        Raises:
            HistoryError: The pass has read no row of the past.
        """
        snapshot = self.snapshot
        read = sum(trace.tokens + trace.representatives for trace in state.traces)
        if not read and not len(state.layout.window_rows):
            raise HistoryError("retrieval selected nothing in this time range: raise its budget")
        return MemoryAnswer(
            question=self.question,
            p_yes=answer.p_yes,
            yes_logit=answer.yes_logit,
            no_logit=answer.no_logit,
            text=text,
            evidence=_evidence(state, snapshot),
            covered_from_us=snapshot.covered_from_us,
            covered_to_us=int(snapshot.times_us[-1]),
            cost=_cost(self.engine.model, state, asked.tokens, spent),
            traces=tuple(state.traces),
            shares=answer.shares,
        )

    def _reading(
        self,
        moving: contextlib.ExitStack,
        settings: RetrievalSettings,
        predictor: Predictor,
        traces: list[LayerTrace],
        allowed: FrameChoice,
    ) -> Reader:
        """Return the reader that chooses what each layer reads of the past."""
        device = self.engine.model.device
        reading: Reader
        if isinstance(self.snapshot, Past):
            reading = moving.enter_context(PastReader(self.snapshot, traces, device))
        else:
            ahead = predictor is not Predictor.NONE
            prefetcher = moving.enter_context(Prefetcher(mover(device), self.resident, ahead=ahead))
            reading = ClusterReader(
                self.snapshot, settings, prefetcher, traces, predictor=predictor, span=allowed, device=device
            )
        return reading if self.reader is None else self.reader(traces)

    def read(self, asked: AskedQuestion, lasts: Sequence[torch.Tensor]) -> Answer:
        """Compute the answer from the states [hidden] at the suffixes' ends.

        Raises:
            EngineError: The answer is not finite.
        """
        head = self.engine.model.head.weight
        if asked.tree is not None:
            answer = structured_answer("", asked, asked.read(torch.stack(list(lasts)), head))
        else:
            rows = head.index_select(0, self.engine._answer_rows)
            pair = torch.nn.functional.linear(lasts[0], rows).cpu()
            answer = Answer("", float(pair.double().softmax(-1)[0]), *pair.tolist())
        if not (math.isfinite(answer.yes_logit) and math.isfinite(answer.no_logit)):
            raise EngineError(f"the answer to {self.question!r} is not finite: check the weights")
        return answer


def _allowed(snapshot: Snapshot | Past, since_us: int | None, until_us: int | None) -> FrameChoice:
    """Choose the frames with since <= time < until.

    Raises:
        HistoryError: The memory has none of them.
    """
    if isinstance(snapshot, Past) and since_us is None and until_us is None:
        allowed = snapshot.span  # pasts that are asked together may cover different times
    else:
        allowed = snapshot.choice(since_us, until_us)
    if not allowed.whole and not allowed.holds(snapshot.held_frames()).any():
        raise HistoryError(
            f"nothing is remembered between {_seconds(since_us)} and {_seconds(until_us)} of the stream: the "
            f"memory covers {_seconds(snapshot.covered_from_us)} to {_seconds(int(snapshot.times_us[-1]))}"
        )
    return allowed


def _check_positions(model: LanguageModel, end: int) -> None:
    if end > model.limit:
        raise PositionError(
            f"the question reaches position {end}, but {model.family} has positions up to {model.limit - 1}: "
            "lower span, or use fewer blocks per window"
        )


def _write(  # noqa: PLR0917
    engine: TransformersEngine,
    state: AskPass,
    last: torch.Tensor,
    position: int,
    count: int,
    on_text: Callable[[str], None] | None,
) -> Iterator[str]:
    """Yield greedy text over what the question has read, token by token."""
    ids: list[int] = []
    shown = ""
    for _ in range(count):
        token = int(engine.model.head(last).argmax())
        if token in engine.layout.stop:
            return
        ids.append(token)
        text = engine.text(ids)
        piece, shown = text[len(shown) :], text
        if on_text is not None and piece:
            on_text(piece)
        yield piece
        last = run_pass(engine.model, state, [token], position)
        position += 1


def _seconds(time_us: int | None) -> str:
    return "any time" if time_us is None else f"{time_us / 1e6:g} s"


def _evidence(state: AskPass, snapshot: Readable) -> tuple[Evidence, ...]:
    shares = state.weight_of_frames().cpu()
    weights, total = shares[:-1], float(shares.sum()) or 1.0
    best = torch.sort(weights, descending=True, stable=True).indices[:EVIDENCE].tolist()
    return tuple(
        Evidence(int(snapshot.times_us[frame]), round(float(weights[frame]) / total, 4))
        for frame in sorted(best)
        if float(weights[frame]) > 0
    )


def _cost(model: LanguageModel, state: AskPass, rows: int, spent: float) -> AskCost:
    traces, layers = state.traces, len(model.layers)
    attended = sum(layer.size for layer in state.states if layer is not None)
    moved = [trace.transfer for trace in traces]
    scored = sum(trace.scored for trace in traces)
    computed = flops.products(layers * rows, model.linear) + flops.attention(
        rows * attended, model.heads * model.head_dim
    )
    return AskCost(
        question_tokens=rows,
        memory_tokens=sum(trace.tokens for trace in traces) / layers,
        representatives=sum(trace.representatives for trace in traces) / layers,
        window_tokens=len(state.layout.window_rows),
        bytes_moved=sum(m.early_bytes + m.late_bytes + m.wasted_bytes for m in moved),
        copies=sum(m.early_copies + m.late_copies + m.wasted_copies for m in moved),
        flops=computed + flops.products(scored, model.kv_heads * model.head_dim),
        first_token_s=spent,
        retrieve_s=sum(trace.retrieve_s for trace in traces),
        move_s=sum(trace.move_s for trace in traces),
        attend_s=sum(trace.attend_s for trace in traces),
    )
