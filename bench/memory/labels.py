"""Labels of frames that memory retrieves: as they were born, left out, or written again (`python -m
bench.memory.labels`).

A frame's label is numbered from its chain's key window, so the numbers of a long past repeat. A label that is
written again is a row of its own, computed behind the prefix alone, in place of the one that was born: first
with the same number, which shows what that costs, then with numbers that rise with time.

An hour of each stream is asked in spans of ten minutes, each product question. `right` is the chance that a
span in which the thing was shown gets a higher p(yes) than one without, by question; `evidence` the share of
the frames named as evidence that show it; `dp` the mean |difference| of p(yes) to the labels as born.
Intervals are bootstrap 95 % over the answers of all streams, of differences to the labels as born.

The last line is JSON: {variant: {"right": x, "right_gain": [low, high], "evidence": x, ...}}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.memory.streams import FRAMES, QUALITY, STEP_S, WINDOW, Played
from bench.memory.world import RETRIEVAL, TEXTS, World, feed
from lookout.models.engines.transformers.memory import LayerTrace, MemoryAnswer, ask
from lookout.models.engines.transformers.memory.attention import AskPass, run_pass
from lookout.models.engines.transformers.memory.layout import AskLayout
from lookout.models.engines.transformers.memory.moving import mover
from lookout.models.engines.transformers.memory.reading import ClusterReader, LayerContext
from lookout.past.memory import FrameChoice, Prefetcher, Slots, Snapshot
from watchbench.questions import PRODUCT

KEY_EVERY = 40
"""Windows from key window to key window, as `streams.play` plans them."""
SPAN_US = 600_000_000
DRAWS = 2000
Numbering = Callable[[np.ndarray], np.ndarray]
"""Numbers int64 [n] of labels by the frame int64 [n] of their rows."""


@dataclass
class Labels:
    """K and V [layers][kv_heads, tokens, head_dim] of labels behind the prefix alone, by number."""

    world: World
    played: Played
    rows: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of a label."""
        style = self.world.engine.layout.label
        assert style is not None
        return style.tokens

    def of(self, number: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The rows of a label."""
        if number not in self.rows:
            self.rows[number] = self._computed(number)
        return self.rows[number]

    def _computed(self, number: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        engine, model, prefix = self.world.engine, self.world.engine.model, self.played.prefix
        style, begin = engine.layout.label, prefix.positions.shape[1]
        assert style is not None
        axes, none = len(prefix.positions), np.zeros(0, np.int64)
        slots = Slots(np.full(axes, begin), np.ones(axes, np.int64), 0)
        layout = AskLayout(slots, prefix.positions, none, none, np.zeros((axes, 0), np.int64), begin)
        traces = [LayerTrace() for _ in model.layers]
        out: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])

        def hook_of(rows: list[torch.Tensor]) -> Any:
            def hook(_module: object, _inputs: object, output: torch.Tensor) -> None:
                rows.append(output[0].view(style.tokens, model.kv_heads, model.head_dim).transpose(0, 1))

            return hook

        hooks = []
        for layer in model.layers:
            attention: Any = layer.self_attn
            for projection, rows in ((attention.k_proj, out[0]), (attention.v_proj, out[1])):
                hooks.append(projection.register_forward_hook(hook_of(rows)))
        try:
            with torch.inference_mode():
                empty: Any = _Empty(prefix)
                state = AskPass(model, empty, layout, _ReadsNothing(), traces, style.tokens)
                run_pass(model, state, style.ids(number), begin)
        finally:
            for handle in hooks:
                handle.remove()
        return out


@dataclass
class _Empty:
    """A memory of nothing."""

    prefix: Any
    times_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    window: tuple[()] = ()


class _ReadsNothing:
    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Nothing is fetched ahead."""

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        return None


@dataclass
class Relabelled:
    """A reader whose label rows are others; without a numbering they are left out."""

    reader: ClusterReader
    labels: Labels
    numbering: Numbering | None

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Nothing is fetched ahead."""

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        context = self.reader.read(layer, query)
        if context is None:
            return None
        parts = list(context.parts)
        keys, values = (torch.cat([part[side] for part in parts], 1) for side in (0, 1))
        of_label = context.places[0] < self.labels.tokens
        if self.numbering is None:
            rest = np.flatnonzero(~of_label)
            index = torch.from_numpy(rest)
            own = [(keys[:, index], values[:, index])]
            return LayerContext(own, context.frames[rest], context.places[:, rest], len(rest))
        numbers = self.numbering(context.frames)
        keys, values = keys.clone(), values.clone()
        for row in np.flatnonzero(of_label).tolist():
            place = int(context.places[0, row])
            k, v = self.labels.of(int(numbers[row]))
            keys[:, row], values[:, row] = k[layer][:, place], v[layer][:, place]
        return LayerContext([(keys, values)], context.frames, context.places, context.tokens)


def as_born(frames: np.ndarray) -> np.ndarray:
    """The numbers that labels were born with."""
    block, place = frames // FRAMES, frames % FRAMES
    chain = np.where(block < KEY_EVERY, block, WINDOW - 1 + block % KEY_EVERY)
    out: np.ndarray = chain * FRAMES + place + 1
    return out


def in_order(frames: np.ndarray) -> np.ndarray:
    """Numbers of the frames that a layer reads, in order of time, up to the slots of the memory."""
    distinct, rank = np.unique(frames, return_inverse=True)
    out: np.ndarray = np.maximum(1, rank + 1 + RETRIEVAL.span - len(distinct))
    return out


def by_time(frames: np.ndarray) -> np.ndarray:
    """Samples since the hour began, in three digits."""
    out: np.ndarray = frames * 999 // round(3600 / STEP_S) + 1
    return out


def window_after(shot: Snapshot, labels: Labels, first: int) -> Snapshot:
    """The same memory, its window's labels numbered from `first` on."""
    entries, number = [], first
    for entry in shot.window:
        block = entry.block
        keys, values = block.keys.clone(), block.values.clone()
        for row in np.flatnonzero(block.places[0] < labels.tokens).tolist():
            place = int(block.places[0, row])
            k, v = labels.of(number + int(block.frame[row]))
            for layer in range(len(k)):
                keys[layer][:, row], values[layer][:, row] = k[layer][:, place], v[layer][:, place]
        number += block.frames
        entries.append(replace(entry, block=replace(block, keys=keys, values=values)))
    return replace(shot, window=tuple(entries))


def answers(world: World, played: Played) -> list[dict[str, Any]]:
    """Every variant's answers to every question in every span of an hour."""
    memory = world.memory(played)
    feed(memory, played.blocks, world)
    shot, labels = memory.snapshot(), Labels(world, played)
    after = window_after(shot, labels, RETRIEVAL.span + 1)
    variants: dict[str, tuple[Snapshot, Numbering | str | None]] = {
        "born": (shot, "born"),
        "left out": (shot, None),
        "same number": (shot, as_born),
        "by time": (shot, by_time),
        "in order": (shot, in_order),
        "in order, window too": (after, in_order),
    }
    rows = []
    for begin in range(0, round(played.frames * STEP_S * 1e6), SPAN_US):
        inside = (shot.times_us >= begin) & (shot.times_us < begin + SPAN_US)
        for number, name in enumerate(PRODUCT):
            shown = played.truth[: len(inside), number] & inside
            own = {}
            for variant, (memory_shot, numbering) in variants.items():
                answer = _asked(world, memory_shot, TEXTS[name], labels, numbering, begin)
                named = np.searchsorted(shot.times_us, [moment.time_us for moment in answer.evidence])
                own[variant] = {"p": answer.p_yes, "evidence": float(shown[named].mean())}
            rows.append({"question": name, "yes": bool(shown.any()), "variants": own})
    return rows


def _asked(  # noqa: PLR0917
    world: World,
    shot: Snapshot,
    text: str,
    labels: Labels,
    numbering: Numbering | str | None,
    begin: int,
) -> MemoryAnswer:
    span: FrameChoice = shot.choice(begin, begin + SPAN_US)
    device = world.engine.model.device
    with Prefetcher(mover(device), lambda _: True, ahead=False) as prefetcher:

        def make(traces: Sequence[LayerTrace]) -> Any:
            reader = ClusterReader(shot, RETRIEVAL, prefetcher, traces, span=span, device=device)
            return reader if isinstance(numbering, str) else Relabelled(reader, labels, numbering)

        return ask(
            world.engine,
            shot,
            text,
            retrieval=RETRIEVAL,
            since_us=begin,
            until_us=begin + SPAN_US,
            reader=make,
        )


def right(rows: Sequence[dict[str, Any]], variant: str) -> float:
    """The chance that a span with the thing gets a higher p(yes) than one without, over all questions."""
    better = pairs = 0.0
    for name in PRODUCT:
        p = {
            yes: np.array(
                [r["variants"][variant]["p"] for r in rows if (r["question"], r["yes"]) == (name, yes)]
            )
            for yes in (True, False)
        }
        above = p[True][:, None] - p[False][None]
        better += (above > 0).sum() + (above == 0).sum() / 2
        pairs += above.size
    return float(better / max(1.0, pairs))


def evidence(rows: Sequence[dict[str, Any]], variant: str) -> float:
    """Frames named as evidence that show the thing, where it was shown."""
    return float(np.mean([row["variants"][variant]["evidence"] for row in rows if row["yes"]] or [0.0]))


def table(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Figures of every variant."""
    draw, out = np.random.default_rng(0), {}
    picks = draw.integers(len(rows), size=(DRAWS, len(rows))).tolist()
    drawn = [[rows[pick] for pick in own] for own in picks[: DRAWS // 4]]
    for variant in rows[0]["variants"]:
        own: dict[str, Any] = {}
        for name, of in (("right", right), ("evidence", evidence)):
            own[name] = round(of(rows, variant), 3)
            gains = [of(some, variant) - of(some, "born") for some in drawn]
            own[f"{name}_gain"] = np.quantile(gains, (0.025, 0.975)).round(3).tolist()
        change = [abs(row["variants"][variant]["p"] - row["variants"]["born"]["p"]) for row in rows]
        own["dp"] = round(float(np.mean(change)), 3)
        for yes in (True, False):
            p = [row["variants"][variant]["p"] for row in rows if row["yes"] is yes]
            own["p_yes" if yes else "p_no"] = round(float(np.mean(p)), 3)
        out[variant] = own
    return out


def main() -> None:
    """Print a row for each stream, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/bench-memory"), help="where streams are kept")
    parser.add_argument("--streams", type=int, default=len(QUALITY), help="so many of the streams")
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = World(options.out)
    rows: list[dict[str, Any]] = []
    for spec in QUALITY[: options.streams]:
        rows += answers(world, world.stream(spec))
        print(
            json.dumps({"stream": spec.name, "yes": sum(row["yes"] for row in rows), "of": len(rows)}),
            flush=True,
        )
    print(json.dumps(table(rows)))


if __name__ == "__main__":
    main()
