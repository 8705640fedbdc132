"""`python -m bench.damage`: what lost packets do to answers, and what is said of it.

Real clips of fixed cameras are cut into MPEG-TS segments as a camera sends them, a share of the TS packets is
dropped at random, and every segment is decoded, pruned and asked as the fleet does. p(yes) of every window
is compared with that of the whole clip. Per share of packets: windows that are marked (damage above 0,
coverage below 1, degraded, or a gap), windows that are answered, the mean and the largest difference of
p(yes) of these, and the largest of windows of which nothing is said (`unmarked`). A second table has the
differences by the damage of the window, without a limit: `MAX_DAMAGE` is chosen from it. Random losses leave
hardly a window with little damage, because every loss lasts until the next keyframe; so short bursts are lost
too, each a little before a keyframe. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.motion import footage
from lookout.models import find_model, window_defaults
from lookout.models.engines import Engine, Question, WindowRequest, load_engine
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.models.windows import DEFAULT_PRESET, PRESETS, Planner, StrideBlock
from lookout.pruning import Carry, PrunePolicy
from lookout.streams import MAX_DAMAGE, BlockFacts, StrideFrame, WindowRule, encode_strides, strides_of
from lookout.video.segments import CodecError, DecodeRequest, SamplingGrid, SoftwareDecoder, Tail, cut

SHARES = (0.0, 0.01, 0.05, 0.2, 0.4)
#: bursts: share of a segment that comes behind the hole, and of how many segments one has a hole
BURSTS = ((0.05, 1), (0.05, 4), (0.1, 2), (0.2, 1), (0.2, 4), (0.4, 4))
HOLE = 3  # packets
BINS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
TS_PACKET = 188
QUESTIONS = (
    "Is there a person?",
    "Is anyone lying on the ground?",
    "Is there a vehicle?",
    "Is anything moving?",
)


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One window: p(yes) by question (None where nothing can be asked), its damage, and its coverage."""

    p_yes: tuple[float, ...] | None
    damage: float
    coverage: float = 0.0

    @property
    def marked(self) -> bool:
        """Whether its outcome says that something is missing or damaged."""
        return self.p_yes is None or self.damage > 0 or self.coverage < 1


class Player:
    """Asks the windows of a clip, each computed alone."""

    def __init__(self) -> None:
        folder = find_model(None)
        self.sampling = window_defaults(folder)
        self.tower: Tower = load_tower(folder)
        self.engine: Engine = load_engine(folder)
        self.planner = Planner(self.engine.layout, PRESETS[DEFAULT_PRESET].sampled(self.sampling))
        self.rule = WindowRule(self.sampling.window_blocks, max_damage=1.0)

    def windows(self, segments: Sequence[bytes], whole: Sequence[bytes]) -> list[WindowResult]:
        """Every window of a clip.

        Args:
            segments: What arrived.
            whole: What was sent: its clock says where segments belong.
        """
        carry: Carry | None = None
        blocks: list[StrideBlock] = []
        facts: list[BlockFacts] = []
        size = self.sampling.block_samples
        members = dict(strides_of(self._frames(segments, whole), size))
        for index in range(max(members, default=-1) + 1):
            frames = members.get(index, [])
            encoded = encode_strides([frames], self.tower, PrunePolicy(), self.sampling.step_us, carry)
            carry = encoded.carry
            blocks.append(StrideBlock("clip/0", index, encoded.strides[0]))
            damaged = sum(frame.sample.corrupt for frame in frames)
            facts.append(BlockFacts(index, size, len(frames), damaged))
        questions = [Question(text, text) for text in QUESTIONS]
        results = []
        for last in range(1, len(blocks) + 1):
            first = max(0, last - self.rule.blocks)
            damage = self.rule.damage(facts[first:last])
            coverage = self.rule.coverage(facts[first:last])
            if self.rule.refusal(facts[first:last]) is not None:
                results.append(WindowResult(None, damage))
                continue
            plan = self.planner.plan(blocks[first:last])
            request = WindowRequest(plan, blocks[first:last], questions, keep=False)
            answer = self.engine.run([request])[0].unwrap()
            results.append(WindowResult(tuple(each.p_yes for each in answer.answers), damage, coverage))
        return results

    def _frames(self, segments: Sequence[bytes], whole: Sequence[bytes]) -> Iterator[StrideFrame]:
        grid = self.tower.grid
        request = DecodeRequest(
            grid.width, grid.height, SamplingGrid(self.sampling.step_us), tail=Tail.LEAVE, vectors=False
        )
        decoder = SoftwareDecoder()
        for data, sent in zip(segments, whole, strict=True):
            undamaged = decoder.decode(sent, request)
            if request.expected is None:
                request = replace(
                    request, expected=replace(undamaged.following(), next_us=undamaged.facts.first_us)
                )
            try:
                decoded = decoder.decode(data, request)
            except CodecError:
                pass  # a dead letter
            else:
                for frame, pixels in zip(decoded.frames, decoded.pixels, strict=True):
                    yield StrideFrame.of(frame, pixels)
            position = decoder.decode(sent, request)
            request = replace(request, expected=position.following(), first_slot=position.next_slot)


def dropped(data: bytes, share: float, draw: np.random.Generator) -> bytes:
    """The stream without a random share of its packets."""
    pieces = [data[at : at + TS_PACKET] for at in range(0, len(data), TS_PACKET)]
    return b"".join(piece for piece in pieces if draw.random() >= share)


def dropped_all(segments: Sequence[bytes], share: float) -> list[bytes]:
    """Segments without a random share of their packets, the same ones in every run."""
    draw = np.random.default_rng(7)
    return [dropped(data, share, draw) for data in segments]


def burst(segments: Sequence[bytes], share: float, every: int) -> list[bytes]:
    """The stream with a hole of a few packets in one of `every` segments, a `share` of it before its end."""
    arrived = []
    for number, data in enumerate(segments):
        at = int((1 - share) * (len(data) // TS_PACKET)) * TS_PACKET
        hit = number % every == 1 % every
        arrived.append(data[:at] + data[at + HOLE * TS_PACKET :] if hit else data)
    return arrived


def measure(paths: Sequence[Path], max_damage: float) -> dict[str, object]:
    """The figures of both tables."""
    player = Player()
    names = [f"{share:g}" for share in SHARES] + [
        f"burst {share:g} of 1 in {every}" for share, every in BURSTS
    ]
    rows = {name: defaultdict[str, list[float]](list) for name in names}
    bins: dict[float, list[float]] = defaultdict(list)
    for path in paths:
        whole = [piece.data for piece in cut(path) if piece.container == "mpegts"]
        truth = player.windows(whole, whole)
        losses = [dropped_all(whole, share) for share in SHARES]
        losses += [burst(whole, share, every) for share, every in BURSTS]
        for name, arrived in zip(names, losses, strict=True):
            row = rows[name]
            results = player.windows(arrived, whole)
            results += [WindowResult(None, 0.0)] * (len(truth) - len(results))
            for window, known in zip(results, truth, strict=False):
                if known.p_yes is None:
                    continue
                asked = window.p_yes is not None and window.damage <= max_damage
                row["answered"].append(asked)
                row["marked"].append(window.marked)
                if window.p_yes is None:
                    continue
                difference = np.abs(np.subtract(window.p_yes, known.p_yes)).tolist()
                bins[next(edge for edge in BINS if window.damage <= edge)] += difference
                if asked:
                    row["dp"] += difference
                if not window.marked:
                    row["unmarked"] += difference
        print(path.name, len(truth), "windows", flush=True)
    return {
        "bench": "damage",
        "clips": len(paths),
        "max_damage": max_damage,
        "lost": {
            name: {
                "windows": len(row["answered"]),
                "marked": round(float(np.mean(row["marked"])), 4),
                "answered": round(float(np.mean(row["answered"])), 4),
                "dp": round(float(np.mean(row["dp"])), 4) if row["dp"] else None,
                "dp_largest": round(max(row["dp"]), 4) if row["dp"] else None,
                "unmarked_largest": round(max(row["unmarked"]), 4) if row["unmarked"] else None,
            }
            for name, row in rows.items()
        },
        "damage": {
            f"{edge:g}": {
                "answers": len(bins[edge]),
                "dp": round(float(np.mean(bins[edge])), 4),
                "largest": round(max(bins[edge]), 4),
                "other_side": round(float(np.mean(np.array(bins[edge]) > 0.5)), 4),
            }
            for edge in BINS
            if bins[edge]
        },
    }


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clips", type=int, default=12, help="clips of fixed cameras, at most")
    parser.add_argument("--max-damage", type=float, default=MAX_DAMAGE)
    options = parser.parse_args()
    root = footage()
    if root is None:
        raise SystemExit("no real clips here: set LOOKOUT_FOOTAGE")
    paths = sorted((root / "fixed").glob("*.mp4"))[: options.clips]
    print(json.dumps(measure(paths, options.max_damage)))


if __name__ == "__main__":
    main()
