"""KV of questions' rows while their answers are written, so that one more token costs one row, not the whole
question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lookout.models.windows.types import Rows


@dataclass(slots=True, eq=False)
class QuestionKV:
    """KV of the rows of several questions over one window; it is dropped when the answers are written.

    Rows count once their pass is complete (`commit`); a pass that failed halfway is repeated after the
    earlier rows.

    Attributes:
        keys: Per layer K [kv_heads, rows, head_dim], rotated; `values` likewise.
        owner: int64 [rows], the number of the question to which each row belongs.
    """

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    owner: Rows = field(default_factory=lambda: np.zeros(0, np.int64))

    def joined(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's K and V of this pass after those of earlier passes, and return all of them."""
        if layer == len(self.keys):
            self.keys.append(keys.clone())
            self.values.append(values.clone())
        else:
            count = len(self.owner)
            self.keys[layer] = torch.cat([self.keys[layer][:, :count], keys], 1)
            self.values[layer] = torch.cat([self.values[layer][:, :count], values], 1)
        return self.keys[layer], self.values[layer]

    def commit(self, owner: Rows) -> None:
        """Count the rows of a complete pass; `owner` int64 [rows] is the question of each row."""
        self.owner = np.concatenate([self.owner, owner])


@dataclass(frozen=True, slots=True, eq=False)
class QuestionRows:
    """The rows of questions in a pass.

    Attributes:
        owner: int64 [rows], the number of the question to which each row belongs.
        steps: int64 [rows], the distance of each row from the first row of its question.
        ends: int64 [questions], the last row of each question.
    """

    owner: Rows
    steps: Rows
    ends: Rows

    @classmethod
    def of(
        cls, suffixes: Sequence[Sequence[int]], past: QuestionKV | None, numbers: Sequence[int] | None
    ) -> QuestionRows:
        """Number the rows of suffixes, following the rows that `past` has of the same questions.

        Args:
            suffixes: Token ids of each suffix.
            past: Rows of earlier passes.
            numbers: The question to which each suffix belongs; None: 0, 1, 2, ...
        """
        lengths = [len(suffix) for suffix in suffixes]
        own = np.arange(len(lengths)) if numbers is None else np.array(numbers, np.int64)
        before = [0 if past is None else int((past.owner == number).sum()) for number in own]
        none = np.zeros(0, np.int64)
        steps = [start + np.arange(count) for start, count in zip(before, lengths, strict=True)]
        return cls(np.repeat(own, lengths), np.concatenate([none, *steps]), np.cumsum(lengths) - 1)

    def owners(self, past: QuestionKV | None) -> Rows:
        """The question of each row of `past` and of these rows, int64 [`past` + rows]."""
        return self.owner if past is None else np.concatenate([past.owner, self.owner])


def seen_rows(owners: torch.Tensor, rows: int, window: int) -> torch.Tensor:
    """Build the mask of what each question row sees: the window, and its question up to that row.

    Args:
        owners: The question number of each row, int64 [rows of earlier passes + `rows`].
        rows: Question rows of this pass, the last of `owners`.
        window: Rows of the window.

    Returns:
        Bool [rows, window + owners], on the device of `owners`.
    """
    before = len(owners) - rows
    own = (owners[before:, None] == owners[None]).tril(before)
    return torch.cat([own.new_ones(rows, window), own], 1)
