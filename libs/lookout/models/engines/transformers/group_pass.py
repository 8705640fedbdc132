"""The attention of one group of a recording, over the KV kept so far and the group's rows, and the pruning
that follows.

In every layer, each KV head keeps the entries with the highest scores, the same number per head, so that the
KV is rectangular. Positions never change in a recording, so keys are stored rotated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from lookout.models.engines.transformers.attention import Chunk, LayerCache, sdpa
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.engines.transformers.question_kv import QuestionKV
from lookout.models.windows.rotary import Angles, Rotary
from lookout.recordings import GroupPlan, PrefillSettings, Score

Ints = np.ndarray


@dataclass(slots=True, eq=False)
class RecordingKV:
    """The kept KV of one recording.

    Attributes:
        keys: Per layer [kv_heads, capacity, head_dim], rotated.
        values: Per layer [kv_heads, capacity, head_dim].
        entries: Per layer int32 [kv_heads, capacity]: the prompt row of every entry.
        rows: Entries in use, per layer and KV head.
        frame_of_row: Frame of every prompt row, -1 for the prefix.
        times_us: Time of every frame.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    entries: list[torch.Tensor]
    rows: int = 0
    frame_of_row: list[Ints] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)

    @classmethod
    def empty(cls, model: LanguageModel) -> RecordingKV:
        """Return KV without rows."""
        shape = (model.kv_heads, 0, model.head_dim)
        keys = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in model.layers]
        entries = [
            torch.zeros((model.kv_heads, 0), dtype=torch.int32, device=model.device) for _ in model.layers
        ]
        return cls(keys, [torch.zeros_like(part) for part in keys], entries)

    @property
    def capacity(self) -> int:
        """Rows allocated in every layer; if an allocation failed halfway, some layers have more."""
        return min(int(part.shape[1]) for part in (*self.keys, *self.values, *self.entries))

    @property
    def kv_bytes(self) -> int:
        """Bytes of the entries in use, over all layers."""
        key = self.keys[0]
        return 2 * len(self.keys) * key.shape[0] * key.shape[2] * key.element_size() * self.rows

    def reserve(self, rows: int) -> None:
        """Make room for `rows` entries, layer by layer; after a failure it can be called again."""
        for parts in (self.keys, self.values, self.entries):
            for index, old in enumerate(parts):
                if old.shape[1] >= rows:
                    continue
                fresh = old.new_zeros((old.shape[0], rows, *old.shape[2:]))
                fresh[:, : self.rows] = old[:, : self.rows]
                parts[index] = fresh


@dataclass(slots=True, eq=False)
class GroupPass(LayerCache):
    """A group's rows, then the rows of questions."""

    kv: RecordingKV
    plan: GroupPlan | None
    settings: PrefillSettings
    angles: Angles
    chunks: list[Chunk]
    question_rows: int
    question_angles: Angles
    question_mask: torch.Tensor | None
    competing: torch.Tensor | None
    fixed: torch.Tensor | None
    weigh: torch.Tensor | None = None  # question rows whose attention is summed
    attention: torch.Tensor | None = None  # float32 [weighed, prompt rows]
    past: QuestionKV | None = None  # KV of the questions from earlier passes; receives that of this pass

    @property
    def group_rows(self) -> int:
        """Rows of the group in the pass."""
        return 0 if self.plan is None else self.plan.rows

    def attend(
        self, layer: int, key: torch.Tensor, query: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """See `LayerCache.attend`."""
        kv, count = self.kv, self.group_rows
        before, end = kv.rows, kv.rows + count
        keys, values = kv.keys[layer], kv.values[layer]
        out = torch.empty(
            (query.shape[1], query.shape[0], query.shape[2]), dtype=query.dtype, device=query.device
        )
        if count:
            keys[:, before:end] = Rotary.rotate(key[:, :count], self.angles)
            values[:, before:end] = value[0, :, :count]
            placed = Rotary.rotate(query[:, :count], self.angles)
            for chunk in self.chunks:
                visible = slice(0, chunk.limit)
                out[chunk.start : chunk.stop] = sdpa(
                    placed[:, chunk.start : chunk.stop],
                    keys[:, visible],
                    values[:, visible],
                    chunk.mask,
                    scaling,
                )
        question: torch.Tensor | None = None
        if self.question_rows:
            question = Rotary.rotate(query[:, count:], self.question_angles)
            own = Rotary.rotate(key[:, count:], self.question_angles)
            own_values = value[0, :, count:]
            if self.past is not None:
                own, own_values = self.past.joined(layer, own, own_values)
            all_keys = torch.cat([keys[:, :end], own], 1)
            all_values = torch.cat([values[:, :end], own_values], 1)
            out[count:] = sdpa(question, all_keys, all_values, self.question_mask, scaling)
            if self.weigh is not None:
                self._weigh(layer, question, all_keys, scaling)
        if self.plan is not None:
            self._prune(layer, question)
        return out

    def _prune(self, layer: int, asked: torch.Tensor | None) -> None:
        """Keep the group's entries with the highest scores, in prompt order."""
        kv, plan = self.kv, self.plan
        assert plan is not None
        before, count = kv.rows, plan.rows
        keys = kv.keys[layer][:, before : before + count]
        values = kv.values[layer][:, before : before + count]
        entries = kv.entries[layer]
        if plan.kept == count:
            number = torch.arange(plan.before, plan.before + count, dtype=torch.int32, device=keys.device)
            entries[:, before : before + count] = number
            return
        assert self.competing is not None
        survivors = self._chosen(layer, keys, values, asked)
        if self.fixed is not None:
            survivors = torch.cat([self.fixed.expand(keys.shape[0], -1), survivors], 1)
        survivors = survivors.sort(1).values
        wide = survivors[..., None].expand(-1, -1, keys.shape[2])
        stop = before + plan.kept
        kv.keys[layer][:, before:stop] = keys.gather(1, wide)
        kv.values[layer][:, before:stop] = values.gather(1, wide)
        entries[:, before:stop] = (survivors + plan.before).to(torch.int32)

    def _chosen(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, asked: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the competing rows that stay, int64 [kv_heads, keep], unordered."""
        plan, settings, rows = self.plan, self.settings, self.competing
        assert plan is not None
        assert rows is not None
        heads, keep, total = keys.shape[0], plan.keep, rows.shape[0]
        if settings.score is Score.FIRST:
            return rows[:keep].expand(heads, -1)
        if settings.score is Score.UNIFORM:
            spread = (torch.arange(keep, device=rows.device) * total + total // 2) // keep
            return rows[spread].expand(heads, -1)
        scores = self._scores(layer, keys.index_select(1, rows), values.index_select(1, rows), asked)
        return rows[scores.topk(keep, dim=1, sorted=False).indices]

    def _scores(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, asked: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the scores [kv_heads, rows] of competing rows; the rows with the highest scores stay."""
        plan, settings = self.plan, self.settings
        assert plan is not None
        if settings.score is Score.KEY_NORM:
            return -_norm(keys)
        if settings.score is Score.LARGE_KEY_NORM:
            return _norm(keys)
        if settings.score is Score.VALUE_NORM:
            return _norm(values)
        if settings.score is Score.ATTENTION:
            assert asked is not None
            # The mean of the dot products with all queries equals the dot product with their mean.
            mean = asked.float().mean(1).view(keys.shape[0], -1, keys.shape[2]).mean(1)
            return (keys.float() @ mean[..., None])[..., 0]
        draw = torch.Generator(device="cpu")
        draw.manual_seed((settings.seed * 1_000_003 + plan.group) * 1_009 + layer)
        return torch.rand(keys.shape[:2], generator=draw).to(keys.device)

    def _weigh(self, layer: int, asked: torch.Tensor, keys: torch.Tensor, scaling: float) -> None:
        """Add the attention of the weighed question rows to the prompt rows that receive it."""
        assert self.weigh is not None
        assert self.question_mask is not None
        assert self.attention is not None
        weighed = asked.index_select(1, self.weigh)
        queries = weighed.view(keys.shape[0], -1, *weighed.shape[1:])
        scores = queries.float() @ keys.float().transpose(1, 2)[:, None] * scaling
        scores = scores + self.question_mask.index_select(0, self.weigh).float()
        weight = scores.softmax(-1)[..., : self.kv.rows].sum(1)  # [kv_heads, weighed, entries]
        where = self.kv.entries[layer][:, : self.kv.rows].long()
        for head in range(where.shape[0]):
            self.attention.index_add_(1, where[head], weight[head])


def _norm(x: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of the last axis, in float32."""
    norm: torch.Tensor = torch.linalg.vector_norm(x.float(), dim=-1)
    return norm
