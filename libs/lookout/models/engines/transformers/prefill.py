"""Group prefill of recordings with KV pruning (QuickPrefill, QuickVideo section 3.2).

Groups run one after the other through the stock decoder layers. Each group attends to the kept KV of all
earlier groups (`group_pass`). Nothing is read back from the device, because the plan determines all counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lookout.models.engines.asked import in_order, places_of, structured_answer
from lookout.models.engines.costs import written_flops
from lookout.models.engines.transformers.attention import CHUNK, Chunk, additive
from lookout.models.engines.transformers.engine import TransformersEngine
from lookout.models.engines.transformers.group_pass import GroupPass, Ints, RecordingKV
from lookout.models.engines.transformers.question_kv import QuestionKV, QuestionRows, seen_rows
from lookout.models.engines.types import Answer, EngineError, Evidence, PlanError, PositionError, Question
from lookout.models.flops import causal_pairs
from lookout.models.windows import EncodedFrame
from lookout.models.windows.rotary import Angles
from lookout.recordings import GroupPlan, PrefillSettings, Score


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The cost of one group.

    Attributes:
        rows: Rows computed.
        kept: Entries kept so far, per layer and KV head.
        kv_bytes: KV bytes so far.
        flops: 2 per multiply-add, for projections, MLP and attention of group rows and of question rows.
    """

    rows: int
    kept: int
    kv_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class RecordingAnswer:
    """An answer, with the frames that it attends to most, the most attended first."""

    answer: Answer
    evidence: tuple[Evidence, ...] = ()


class GroupPrefill:
    """Prefills one recording group by group and answers questions about it.

    Args:
        engine: The engine whose model runs; its streams are not touched.
        settings: Which entries of each group stay.
        questions: The questions whose attention is used by `Score.ATTENTION`; KV that was pruned by this
            score serves only these questions.
        expected_rows: Prompt rows of the whole recording, so that KV is allocated once.

    Raises:
        EngineError: `Score.ATTENTION` is set, but there is no question.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        settings: PrefillSettings,
        *,
        questions: Sequence[Question] = (),
        expected_rows: int = 0,
    ) -> None:
        if settings.score is Score.ATTENTION and settings.rho < 1 and not questions:
            raise EngineError(
                "the attention score needs the questions before prefill: pass them to the constructor"
            )
        self.engine, self.settings = engine, settings
        self.model, self.layout = engine.model, engine.layout
        self.kv = RecordingKV.empty(self.model)
        self._expected = expected_rows
        self._asked = [engine.suffix(question.text) for question in questions]
        self._last: GroupPlan | None = None

    @property
    def last(self) -> GroupPlan | None:
        """The plan of the newest group."""
        return self._last

    def add(
        self, plan: GroupPlan, frames: Sequence[EncodedFrame], *, question_position: int | None = None
    ) -> GroupCost:
        """Prefill the next group.

        Args:
            plan: The group's plan.
            frames: The planned frames; frames without a token are ignored.
            question_position: Position of the questions for `Score.ATTENTION`: the position after the whole
                recording, if it is known; None: right after the group.

        Raises:
            PlanError: The plan does not continue the last one, or does not fit its frames.
        """
        shown = [frame for frame in frames if len(frame.kept)]
        self._check(plan, shown)
        looking = self.settings.score is Score.ATTENTION and plan.kept < plan.rows
        suffixes = self._asked if looking else []
        position = plan.question_position if question_position is None else question_position
        with self.engine.in_turn():
            self._reserve(plan)
            state = self._pass(plan, QuestionRows.of(suffixes, None, None), position)
            # The questions run after the group in the same pass, so that their attention to it needs no
            # second pass.
            hidden = torch.cat([self._embed(plan, shown), self._embed_text(suffixes)])
            self._run(state, hidden, self._deep(plan, shown, sum(map(len, suffixes))))
            self.kv.rows += plan.kept
        offset = len(self.kv.times_us)
        self.kv.frame_of_row.append(_frames_of(plan, offset))
        self.kv.times_us += [frame.time_us for frame in shown]
        before, self._last = self.kv.rows - plan.kept, plan
        suffix_tokens, shape = sum(map(len, suffixes)), self.model.shape
        flops = shape.flops(plan.rows, causal_pairs(plan.rows, before))
        flops += shape.flops(suffix_tokens, suffix_tokens * (before + plan.rows + suffix_tokens))
        return GroupCost(plan.rows, self.kv.rows, self.kv.kv_bytes, flops)

    def ask(
        self, questions: Sequence[Question], *, evidence: int = 0
    ) -> tuple[tuple[RecordingAnswer, ...], int]:
        """Answer questions at the end of what was prefilled; KV does not change.

        Args:
            questions: Any number; each sees only the recording and itself.
            evidence: Number of frames to list per answer: those that it attends to most.

        Returns:
            The answers in the order of the questions, and the FLOPs spent.

        Raises:
            PlanError: Nothing was prefilled, or a question cannot be asked.
            PositionError: A question reaches beyond the model's positions.
            EngineError: An answer is not finite.
        """
        if self._last is None:
            raise PlanError("no group of the recording was prefilled, so no question can be answered")
        if not questions:
            return (), 0
        asked = [self.engine.asked(question.text) for question in questions]
        suffixes, head = in_order(asked), self.model.head.weight
        with self.engine.in_turn():
            past = QuestionKV() if any(question.describe > 0 for question in questions) else None
            last, attention = self._ask(suffixes, evidence > 0, past)
            pairs = torch.nn.functional.linear(
                last[: len(asked)],
                head[torch.tensor([self.layout.yes, self.layout.no], device=last.device)],
            ).float()
            shares = self._shares(attention) if attention is not None else None
            yes, logits = pairs.softmax(-1)[:, 0].tolist(), pairs.tolist()
            answers = [
                Answer(question.id, yes[i], logits[i][0], logits[i][1], tokens=asked[i].tokens)
                for i, question in enumerate(questions)
            ]
            for i, (question, places) in enumerate(zip(asked, places_of(asked), strict=True)):
                if question.tree is not None:
                    answers[i] = structured_answer(
                        questions[i].id, question, question.read(last[places], head)
                    )
            if not all(np.isfinite((answer.yes_logit, answer.no_logit)).all() for answer in answers):
                raise EngineError(f"{self._last.recording}: logits are not finite: check the embeddings")
            texts, spent = self._texts(questions, answers, past)
        return tuple(
            RecordingAnswer(
                replace(answer, text=texts.get(i), text_flops=spent.get(i, 0)),
                () if shares is None else self._best(shares[i], evidence),
            )
            for i, answer in enumerate(answers)
        ), self._flops(suffixes) + sum(spent.values())

    def _check(self, plan: GroupPlan, frames: Sequence[EncodedFrame]) -> None:
        last = self._last
        due = 0 if last is None else last.group + 1
        if plan.group != due or (last is not None and plan.recording != last.recording):
            raise PlanError(f"{plan.recording}: group {plan.group} was given, but group {due} is next")
        tokens = sum(part.visual_stop - part.visual_start for part in plan.parts)
        if plan.frames != len(frames) or tokens != sum(len(frame.kept) for frame in frames):
            raise PlanError(
                f"{plan.recording}: group {plan.group} is planned for {plan.frames} frames with {tokens} "
                f"tokens, but {len(frames)} frames were given"
            )
        wrong = [f for f in frames if f.tokens.shape[1] != self.model.hidden]
        if wrong:
            raise PlanError(
                f"{plan.recording}: tokens have the width {wrong[0].tokens.shape[1]}, but the model needs "
                f"{self.model.hidden}"
            )

    def _reserve(self, plan: GroupPlan) -> None:
        """Make room for the group before it is pruned, or for all groups at once if the recording's length is
        known."""
        need = self.kv.rows + plan.rows
        if need > self.kv.capacity:
            # Only the newest group is kept unpruned.
            planned = int(self._expected * self.settings.rho) + plan.rows if self._expected else 0
            self.kv.reserve(max(need, planned, min(2 * self.kv.capacity, need + 64 * plan.rows)))

    def _pass(
        self, plan: GroupPlan | None, asked: QuestionRows, position: int, past: QuestionKV | None = None
    ) -> GroupPass:
        device, before = self.model.device, self.kv.rows
        count = 0 if plan is None else plan.rows
        axes = self.layout.positions.axes
        places = np.broadcast_to(position + asked.steps, (axes, len(asked.steps))).astype(np.int64)
        mask = None
        if len(asked.owner):
            owners = torch.from_numpy(asked.owners(past)).to(device)
            mask = additive(seen_rows(owners, len(asked.owner), before + count), self.model.dtype)
        competing = fixed = None
        if plan is not None:
            competing = torch.from_numpy(plan.competing).to(device)
            exempt = np.setdiff1d(np.arange(plan.rows), plan.competing)
            fixed = torch.from_numpy(exempt).to(device)[None] if len(exempt) else None
        rows = np.zeros((axes, 0), np.int64) if plan is None else plan.positions
        return GroupPass(
            kv=self.kv,
            plan=plan,
            settings=self.settings,
            angles=self._angles(rows),
            chunks=self._chunks(before, count),
            question_rows=len(asked.owner),
            question_angles=self._angles(places),
            question_mask=mask,
            competing=competing,
            fixed=fixed,
            past=past,
        )

    def _chunks(self, before: int, count: int) -> list[Chunk]:
        """Divide the group's rows into chunks, each of which reads no key after its last row.

        Accelerators align a causal call to the last row and need no mask. CPU kernels need one. All chunks
        read the same mask, starting from its lower right corner, so that the mask never has more rows than a
        chunk.
        """
        if count and (before == 0 or self.model.device.type != "cpu"):
            return [Chunk(0, count, before + count, None)]
        total, rows = before + count, min(CHUNK, count)
        band = additive(torch.ones(rows, total, dtype=torch.bool).tril(total - rows), self.model.dtype)
        out = []
        for start in range(0, count, CHUNK):
            stop = min(count, start + CHUNK)
            mask = band[rows - (stop - start) :, count - stop :]
            out.append(Chunk(start, stop, before + stop, mask))
        return out

    def _run(self, state: GroupPass, hidden: torch.Tensor, deep: torch.Tensor | None) -> torch.Tensor:
        """Run the layers; return the hidden states [rows, hidden] after the last one."""
        size = self.model.head_dim
        # The stock layer gets the identity rotation: `GroupPass` has the angles of group and questions.
        cosine = torch.ones(1, hidden.shape[0], size, dtype=hidden.dtype, device=hidden.device)
        sine = torch.zeros_like(cosine)
        hidden = hidden[None]
        for index, layer in enumerate(self.model.layers):
            hidden = layer(
                hidden,
                attention_mask=None,
                position_ids=None,
                past_key_values=state,
                use_cache=True,
                position_embeddings=(cosine, sine),
            )
            if deep is not None and index < deep.shape[0]:
                hidden = hidden + deep[index]
        return hidden[0]

    def _ask(
        self,
        suffixes: Sequence[Sequence[int]],
        weigh: bool,
        past: QuestionKV | None,
        numbers: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute normed states [questions, hidden] at the ends of suffixes, and their attention to prompt
        rows.

        `past` receives the suffixes' KV. With `numbers`, each suffix continues the question with that number,
        after the rows that `past` has of this question.
        """
        assert self._last is not None
        asked = QuestionRows.of(suffixes, past, numbers)
        position, longest = self._last.question_position, int(asked.steps.max()) + 1
        if position + longest > self.model.limit:
            raise PositionError(
                f"{self._last.recording}: a question of {longest} tokens reaches position "
                f"{position + longest}, but the model has positions only up to {self.model.limit - 1}"
            )
        state = self._pass(None, asked, position, past)
        ends = torch.from_numpy(asked.ends).to(self.model.device)
        if weigh:
            rows = self._last.before + self._last.rows
            state.weigh = ends
            state.attention = torch.zeros(len(suffixes), rows, device=self.model.device)
        hidden = self._run(state, self._embed_text(suffixes), None)
        if past is not None:
            past.commit(asked.owner)
        return self.model.norm(hidden.index_select(0, ends)), state.attention

    def _shares(self, attention: torch.Tensor) -> Ints:
        """Return each frame's share of attention, float64 [questions, frames]."""
        frame = np.concatenate(self.kv.frame_of_row)
        weight = attention.double().cpu().numpy() / (len(self.model.layers) * self.model.heads)
        out = np.zeros((weight.shape[0], len(self.kv.times_us)))
        for row in range(len(out)):
            out[row] = np.bincount(frame[frame >= 0], weight[row, frame >= 0], out.shape[1])
        return out

    def _best(self, shares: Ints, count: int) -> tuple[Evidence, ...]:
        order = np.argsort(-shares, kind="stable")[:count]
        return tuple(Evidence(self.kv.times_us[i], round(float(shares[i]), 4)) for i in order)

    def _flops(self, tails: Sequence[Sequence[int]]) -> int:
        """FLOPs to compute `tails` after the kept KV; each tail also sees itself."""
        pairs = sum(len(tail) * (self.kv.rows + len(tail)) for tail in tails)
        return self.model.shape.flops(sum(map(len, tails)), pairs)

    def _texts(
        self, questions: Sequence[Question], answers: Sequence[Answer], past: QuestionKV | None
    ) -> tuple[dict[int, str], dict[int, int]]:
        """Write descriptions for the questions that were answered Yes and ask for text, greedily; return them
        and the FLOPs of each. `past` has the questions' rows, so that a step computes only one more row per
        question."""
        texts = {
            i: [self.layout.yes]
            for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
            if question.describe > 0 and answer.p_yes > 0.5 and not answer.shares
        }
        before = {} if past is None else {i: int((past.owner == i).sum()) for i in texts}
        going, rows = list(texts), dict.fromkeys(texts, 0)
        while going:
            last, _ = self._ask([(texts[i][-1],) for i in going], False, past, going)
            ids = self.model.head(last).argmax(-1).tolist()
            still = []
            for i, token in zip(going, ids, strict=True):
                rows[i] += 1
                if token not in self.layout.stop:
                    texts[i].append(token)
                    if len(texts[i]) <= questions[i].describe:
                        still.append(i)
            going = still
        spent = {
            i: written_flops(self.model.shape, self.kv.rows + before[i], count) for i, count in rows.items()
        }
        return {i: self.engine.text(ids) for i, ids in texts.items()}, spent

    def _angles(self, positions: Ints) -> Angles:
        return self.model.rotary.angles(torch.from_numpy(positions).to(self.model.device), self.model.dtype)

    def _embed(self, plan: GroupPlan, frames: Sequence[EncodedFrame]) -> torch.Tensor:
        """Embeddings [rows, hidden] of a group."""
        out = self.model.embed(torch.from_numpy(plan.token_ids).to(self.model.device))
        visual = torch.from_numpy(_visual(plan)).to(out.device)
        tokens = torch.cat([frame.tokens for frame in frames]).to(out.device, out.dtype)
        return out.index_copy(0, visual, tokens)

    def _embed_text(self, suffixes: Sequence[Sequence[int]]) -> torch.Tensor:
        ids = torch.tensor([i for suffix in suffixes for i in suffix], dtype=torch.long)
        return self.model.embed(ids.to(self.model.device))

    def _deep(self, plan: GroupPlan, frames: Sequence[EncodedFrame], more: int) -> torch.Tensor | None:
        """DeepStack features [levels, rows, hidden], zero at text rows."""
        if not self.model.deepstack:
            return None
        out = torch.zeros(
            (self.model.deepstack, plan.rows + more, self.model.hidden),
            dtype=self.model.dtype,
            device=self.model.device,
        )
        levels = torch.cat([f.deepstack for f in frames if f.deepstack is not None], 1).to(out)
        out.index_copy_(1, torch.from_numpy(_visual(plan)).to(out.device), levels)
        return out


def _visual(plan: GroupPlan) -> Ints:
    ranges = [np.arange(part.visual_start, part.visual_stop) for part in plan.parts]
    rows: Ints = np.concatenate(ranges).astype(np.int64)
    return rows


def _frames_of(plan: GroupPlan, offset: int) -> Ints:
    """The frame of every row of a group, counted from the recording's first frame; -1 for the prefix."""
    sizes = [part.stop - part.start for part in plan.parts]
    numbers = [-1 if part.block < 0 else offset + part.frame for part in plan.parts]
    rows: Ints = np.repeat(numbers, sizes)
    return rows
