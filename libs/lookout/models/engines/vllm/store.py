"""What a worker keeps of windows: their inputs while they run, and every stream's KV between windows.

Pure torch; vLLM is not imported here. K is canonical (un-rotated): a key is rotated only once, when its
window is placed, so that rounding errors do not add up as windows slide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

Angles = tuple[torch.Tensor, torch.Tensor]
Layer = tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True, eq=False)
class WindowInputs:
    """One window on its way through the engine; sent to every worker before its requests.

    - `key` names this run of the window, `digest` its plan; `stream` names the KV that the window continues,
      `parent` is the digest of that KV's plan (None: the window continues no KV).
    - `positions` int64 [axes, rows]; `question_position` is the position of the first row after the window.
    - `token_ids` int64 [rows], 0 at visual rows; `visual_rows` int64 [n] have `embeddings` [n, hidden] and,
      for Qwen3-VL, `deepstack` [levels, n, hidden].
    - `source` int64 [rows]: rows of the stream's current KV, or -1 for a new row.
    - `computed` int64: ascending rows whose KV this window computes (and keeps). Rows below `load` are
      refreshed as the `runs`; the other rows are the tail that vLLM prefills.
    """

    key: str
    stream: str
    digest: str
    parent: str | None
    positions: torch.Tensor
    question_position: int
    token_ids: torch.Tensor
    visual_rows: torch.Tensor
    embeddings: torch.Tensor
    deepstack: torch.Tensor | None
    source: torch.Tensor
    computed: torch.Tensor
    load: int
    runs: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """Rows of the window without questions."""
        return int(self.token_ids.shape[0])

    def at(self, start: int, stop: int) -> torch.Tensor:
        """Return the positions [axes, stop - start] of prompt rows, including questions and answers."""
        axes = self.positions.shape[0]
        behind = torch.arange(max(start, self.rows), max(stop, self.rows)) - self.rows
        after = (self.question_position + behind).expand(axes, -1)
        return torch.cat([self.positions[:, start : min(stop, self.rows)], after], dim=1)

    def visual(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of the ascending `rows` are visual, as indices into `rows`, and their rows in
        `embeddings`."""
        if not len(self.visual_rows):
            none = torch.zeros(0, dtype=torch.int64)
            return none, none
        nearest = torch.searchsorted(self.visual_rows, rows).clamp(max=len(self.visual_rows) - 1)
        matches = self.visual_rows[nearest] == rows
        return torch.nonzero(matches)[:, 0], nearest[matches]


@dataclass(slots=True, eq=False)
class Captured:
    """The canonical KV that a window computed, per layer [computed, kv_heads, head_dim]."""

    layers: dict[str, Layer] = field(default_factory=dict)
    filled: dict[str, torch.Tensor] = field(default_factory=dict)

    def put(self, name: str, count: int, where: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the K and V of some of a layer's computed rows.

        Args:
            name: Name of the layer.
            count: Number of rows that the window computes.
            where: Indices of the stored rows among the computed rows, int64 [n].
            key: Canonical K, [n, kv_heads, head_dim].
            value: V, same shape.
        """
        if name not in self.layers:
            shape = (count, *key.shape[1:])
            self.layers[name] = (key.new_empty(shape), value.new_empty(shape))
            self.filled[name] = torch.zeros(count, dtype=torch.bool)
        keys, values = self.layers[name]
        at = where.to(keys.device)
        keys.index_copy_(0, at, key.to(keys))
        values.index_copy_(0, at, value.to(values))
        self.filled[name][where] = True

    def has_all(self, name: str) -> bool:
        """Whether every computed row of a layer has been stored."""
        return name in self.filled and bool(self.filled[name].all())


@dataclass(slots=True, eq=False)
class SavedKV:
    """A stream's window: per layer canonical K and V [rows, kv_heads, head_dim]; `digest`: of its plan."""

    rows: int
    digest: str
    layers: dict[str, Layer]

    @property
    def bytes(self) -> int:
        """Bytes held on this worker."""
        return sum(part.numel() * part.element_size() for layer in self.layers.values() for part in layer)


@dataclass(slots=True, eq=False)
class WindowStore:
    """All windows and streams of one worker (each tensor-parallel rank has the KV of its own heads).

    `layers` names the attention layers of the model; a window's KV is complete when all of them were
    captured.
    """

    layers: tuple[str, ...] = ()
    windows: dict[str, WindowInputs] = field(default_factory=dict)
    streams: dict[str, SavedKV] = field(default_factory=dict)
    captured: dict[str, Captured] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def fail(self, key: str, cause: str) -> None:
        """Record the first cause of a window's failure; other windows are not affected."""
        self.failed.setdefault(key, cause)

    def failures(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the causes of windows that failed since the last call, and forget them."""
        return {key: self.failed.pop(key) for key in keys if key in self.failed}

    def parent(self, window: WindowInputs) -> SavedKV:
        """Return the KV that a window continues.

        Raises:
            KeyError: The worker has no KV of the stream, or only that of another window.
        """
        stream = self.streams.get(window.stream)
        if stream is None:
            raise KeyError("its KV is no longer in the worker")
        if stream.digest != window.parent:
            raise KeyError(f"the worker holds the KV of plan {stream.digest}, not of {window.parent}")
        return stream

    def commit(self, key: str, name: str) -> str | None:
        """Make the window's KV the KV of `name`, layer by layer; return None. On failure, return the cause
        and drop the KV of `name`, which may be half changed."""
        try:
            return self.failed.get(key) or self._commit(self.windows[key], name)
        except (RuntimeError, IndexError, KeyError, MemoryError) as error:
            self.drop([name])
            return f"{type(error).__name__}: {error}"
        finally:
            self.captured.pop(key, None)

    def release(self, keys: Iterable[str]) -> None:
        """Forget finished windows."""
        for key in keys:
            self.windows.pop(key, None)
            self.captured.pop(key, None)
            self.failed.pop(key, None)

    def drop(self, names: Iterable[str]) -> None:
        """Free the KV of streams."""
        for name in names:
            self.streams.pop(name, None)

    def _commit(self, window: WindowInputs, name: str) -> str | None:
        old = None if window.parent is None else self.parent(window)
        caught = self.captured.get(window.key, Captured())
        names = self.layers or tuple(old.layers if old is not None else caught.layers)
        if len(window.computed) and not all(caught.has_all(name) for name in names):
            return "some of its rows were never computed"
        if not names:
            return "it computed no rows"
        # In place: the old window is freed layer by layer, so that memory never contains both as a whole.
        if name == window.stream:
            self.streams.pop(name, None)
        reused = torch.ones(window.rows, dtype=torch.bool)
        reused[window.computed] = False
        target = torch.nonzero(reused)[:, 0]
        layers: dict[str, Layer] = {}
        for layer in names:
            before = None if old is None else old.layers.pop(layer)
            fresh = caught.layers.pop(layer, None)
            layers[layer] = (
                _joined(window, target, before and before[0], fresh and fresh[0]),
                _joined(window, target, before and before[1], fresh and fresh[1]),
            )
        self.streams[name] = SavedKV(window.rows, window.digest, layers)
        return None


def _joined(
    window: WindowInputs,
    target: torch.Tensor,
    before: torch.Tensor | None,
    fresh: torch.Tensor | None,
) -> torch.Tensor:
    """Combine reused and computed rows into one layer's K or V of the new window."""
    like = fresh if fresh is not None else before
    assert like is not None
    out = like.new_empty(window.rows, *like.shape[1:])
    if before is not None and len(target):
        moved = before.index_select(0, window.source[target].to(before.device))
        out.index_copy_(0, target.to(out.device), moved)
    if fresh is not None:
        out.index_copy_(0, window.computed.to(out.device), fresh)
    return out


def turned(k: torch.Tensor, angles: Angles, back: bool = False) -> torch.Tensor:
    """Rotate keys [n, heads, dim] by float32 (cosine, sine) [n, dim / 2], `rotate_half` convention. `back`
    exactly undoes what the same angles did, including their scaling (YaRN) and rounding."""
    cos, sin = (part[:, None, :] for part in angles)
    if back:
        # The sum of squares is not exactly 1: YaRN scales cosine and sine, and both are rounded.
        scale = cos * cos + sin * sin
        cos, sin = cos / scale, -sin / scale
    left, right = k.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(k.dtype)
