"""A window that slides, beside what others offer: `make bench-peers-engine`. One footage, one run.

Rendered cameras that the trained tiny model never saw, and real clips of fixed cameras, in windows of 8 and
of 80 frames. By method:

- `vllm`: every window sent again to stock vLLM as images, prefix caching on (`bench.peers_stock`).
- `resend`: every patch, every window computed whole by our engine: the reference of |dp| and F1.
- `append`: an append-only session as vLLM's RFC 51948 describes, emulated: nothing leaves, nothing is pruned,
  and the context grows as long as the stream lasts.
- `restart`: the same within twice a window's context: where that is full, it begins again with the newest
  window. What an append-only session costs where memory or the model's length ends.
- `frames`: whole frames are dropped, evenly; windows are computed whole.
- `evs`, `vidcom2`: the installed vLLM's own functions drop tokens behind the tower; windows are whole.
- `cacheblend`, `vlcache`: our masks, these rules of reuse. `ours`: the default preset.

`equal`: methods with a rate keep as many tokens as ours. `default`: rates of their own (half of the frames;
EVS .5; VidCom2 a quarter kept). A camera's first window is left out: methods that reuse KV compute it whole.
The trained model gives p(yes), hence |dp|, F1 and tokens. Time and FLOPs are those of the same footage on a
random model with a 7B's proportions and its tower, at 36 tokens a frame: CPU seconds of one thread from
pixels to the answers of all questions, over fewer windows and cameras (`--timed`). Intervals are 95 % over
cameras.

Every camera of every method is kept in --keep and not computed again: the command can be stopped and
continues (`--fresh` forgets). The last line is JSON: times of peers over ours, and by how much their |dp| is
above ours, at equal tokens in the longest windows of rendered cameras.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tqdm import tqdm

from bench import windows as shapes
from bench.answered import Cut, interval, real as real_clips, rendered
from bench.peers_stock import Prompt, answered, small_checkpoint
from bench.results import Results
from bench.row_policies import CACHEBLEND, VLCACHE
from lookout.models import DEMO_QUESTIONS, find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import Question, WindowAnswer, WindowRequest
from lookout.models.engines.transformers import load_engine as load_transformers
from lookout.models.families import load_layout, load_tower
from lookout.models.vision import Tower
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    EncodedFrame,
    Layout,
    Planner,
    Policy,
    StrideBlock,
    WindowPlan,
)
from lookout.pruning import PrunePolicy
from lookout.streams import EncodedStrides, StrideFrame, encode_strides, read_clip, strides_of
from tests.conftest import find_footage
from tests.tiny_models import checkpoint

QUESTIONS: Final = [Question(name, text) for name, text in DEMO_QUESTIONS.items()]
CUTS: Final = {"8": (4, 2), "80": (5, 16)}  #: blocks of a window, frames of a block
RATES: Final = {"frames": 0.5, "evs": 0.5, "vidcom2": 0.25}  #: share of tokens kept by default
CHAINED: Final = {
    "cacheblend": CACHEBLEND,
    "vlcache": VLCACHE,
    "ours": None,
}
APPENDING: Final = ("append", "restart")
METHODS: Final = ("resend", *APPENDING, *RATES, *CHAINED)
CONTEXT: Final = 2  #: windows that `restart` has room for
KEEP_ALL: Final = PrunePolicy(everything=True)
Mask = Callable[..., torch.Tensor]


@dataclass(slots=True)
class Spent:
    """What a method did on one camera, window by window."""

    p: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Strides:
    """A camera's strides under one kind of mask, with CPU seconds and FLOPs of the tower for each."""

    blocks: list[StrideBlock] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)


def encoded(
    tower: Tower, strides: Sequence[Sequence[StrideFrame]], policy: PrunePolicy, step_us: int
) -> Strides:
    """Encode a camera's strides one after the other."""
    out, carry = Strides(), None
    for index, frames in enumerate(strides):
        start = time.process_time()
        stride: EncodedStrides = encode_strides([frames], tower, policy, step_us, carry)
        out.seconds.append(time.process_time() - start)
        out.flops.append(tower.flops(stride.inputs))
        out.blocks.append(StrideBlock("camera/0", index, stride.strides[0]))
        carry = stride.carry
    return out


def vllm_masks() -> dict[str, Mask]:
    """The installed vLLM's own rules of dropping tokens; none where it has none."""
    try:
        from vllm.multimodal.video_prune import evs, vidcom2
    except ImportError:
        return {}
    return {"evs": evs.compute_retention_mask, "vidcom2": vidcom2.compute_retention_mask}


def dropped(window: Sequence[StrideBlock], rule: Mask, share: float) -> list[StrideBlock]:
    """A dense window without the tokens that a rule drops; it decides over the whole window."""
    frames = [frame for block in window for frame in block.frames]
    rows, cols = frames[0].keep.shape
    mask = rule(torch.cat([frame.tokens for frame in frames]), (len(frames), rows, cols), 1, 1 - share)
    keeps = iter(mask.reshape(len(frames), rows, cols).numpy())
    return [
        replace(block, frames=tuple(_kept(frame, next(keeps)) for frame in block.frames)) for block in window
    ]


def _kept(frame: EncodedFrame, keep: np.ndarray) -> EncodedFrame:
    rows = torch.from_numpy(np.flatnonzero(keep))
    return replace(frame, keep=keep, tokens=frame.tokens.index_select(0, rows))


def thinned(window: Sequence[StrideBlock], share: float) -> list[StrideBlock]:
    """A dense window with some of its frames, evenly; one at least."""
    total = sum(len(block.frames) for block in window)
    chosen = set(np.linspace(0, total - 1, max(1, round(share * total))).round().astype(int).tolist())
    number, out = 0, []
    for block in window:
        frames = [frame for place, frame in enumerate(block.frames) if number + place in chosen]
        number += len(block.frames)
        out.append(replace(block, frames=tuple(frames)))
    return out


class Side:
    """A model with which cameras are measured: the trained one, or the one that is timed.

    Args:
        folder: The checkpoint.
        windows: At most so many whole windows of a camera.
        layout: Replaces the checkpoint's own prompt.
    """

    def __init__(self, folder: Path, windows: int, layout: Layout | None = None) -> None:
        self.folder, self.windows = folder, windows
        self.tower, self.engine = load_tower(folder), load_transformers(folder, layout=layout)

    def strides(self, path: Path, cut: tuple[int, int]) -> tuple[list[list[StrideFrame]], int]:
        """The strides of a clip that its windows have, and microseconds between two samples."""
        blocks, samples = cut
        clip = read_clip(path, self.tower.grid)
        whole = [members for _, members in strides_of(clip.frames, samples) if len(members) == samples]
        return whole[: blocks + self.windows], clip.step_us

    def prompt(self, frames: int) -> Prompt:
        """What stock vLLM is sent around the frames of a window."""
        suffixes = [self.engine.suffix(question.text) for question in QUESTIONS]
        image = json.loads((self.folder / "config.json").read_text())["image_token_id"]
        return Prompt.of(self.engine.layout, frames, suffixes, image)


class Camera:
    """One camera, answered by every method of one model.

    Args:
        path: The clip.
        side: The model.
        cut: Blocks of a window and frames of a block.
        masks: vLLM's rules.
    """

    def __init__(self, path: Path, side: Side, cut: tuple[int, int], masks: dict[str, Mask]) -> None:
        self._side, self._masks, (self._blocks, samples) = side, masks, cut
        strides, step_us = side.strides(path, cut)
        self._dense = encoded(side.tower, strides, KEEP_ALL, step_us)
        self._pruned = encoded(side.tower, strides, PrunePolicy(), step_us)
        self._settings = replace(PRESETS[DEFAULT_PRESET], blocks=self._blocks, samples=samples)
        self._pictures = [frame.sample.pixels for frames in strides for frame in frames]

    def pictures(self, path: Path) -> Path:
        """Keep the frames for stock vLLM: uint8 [frames, height, width, 3]."""
        np.save(path, np.stack(self._pictures))
        return path

    def stock(self, windows: Sequence[dict[str, Any]]) -> Spent:
        """What stock vLLM did on this camera."""
        shape, spent = self._side.engine.model.shape, Spent()
        for number, window in enumerate(windows[1:], 1):
            rows, cached = np.array(window["rows"]), np.array(window["cached"])
            pairs = (rows * (rows + 1) - cached * (cached + 1)) // 2
            spent.p.append(window["p"])
            spent.seconds.append(window["seconds"])
            spent.flops.append(
                shape.flops(int((rows - cached).sum()), int(pairs.sum()))
                + self._dense.flops[number + self._blocks - 1]
            )
            spent.tokens.append(sum(b.tokens for b in self._dense.blocks[number : number + self._blocks]))
        return spent

    def answers(self, method: str, share: float | None) -> Spent:
        """Every whole window by one method.

        Args:
            method: One of `METHODS`.
            share: Of tokens or frames kept; None: as many as ours of the same window.
        """
        source = self._pruned if method in CHAINED else self._dense
        spent, rate, first = Spent(), 1.0, 0
        plan: WindowPlan | None = None
        for last in range(self._blocks, len(source.blocks) + 1):
            window = source.blocks[last - self._blocks : last]
            if method == "restart" and last - first > CONTEXT * self._blocks:
                first, plan = last - self._blocks, None
            start = time.process_time()
            if method in (*self._masks, "frames"):
                rate = share if share is not None else self._share(last)
                rule = self._masks.get(method)
                window = thinned(window, rate) if rule is None else dropped(window, rule, rate)
            rows = source.blocks[first:last] if method in APPENDING else window
            plan, answer = self._answer(method, rows, plan)
            seconds = time.process_time() - start
            if last == self._blocks:
                continue
            # A dropped frame is not encoded; a dropped token is.
            seen = rate if method == "frames" else 1.0
            spent.p.append([reply.p_yes for reply in answer.answers])
            spent.seconds.append(seconds + seen * source.seconds[last - 1])
            spent.flops.append(answer.cost.total_flops + seen * source.flops[last - 1])
            spent.tokens.append(sum(block.tokens for block in window))
        self._side.engine.close_stream("camera/0")
        return spent

    def _answer(
        self, method: str, rows: Sequence[StrideBlock], plan: WindowPlan | None
    ) -> tuple[WindowPlan | None, WindowAnswer]:
        """One window, and its plan where the next one continues it."""
        chained = method in APPENDING or method in CHAINED
        settings = self._settings
        if method in APPENDING:
            # No more than the stream has: settings decide how wide the numbers of frames are.
            settings = replace(settings, blocks=len(self._dense.blocks), policy=Policy.REUSE_ALL)
        if not chained:
            settings = replace(settings, policy=Policy.PRUNE_ONLY)
        engine = self._side.engine
        planned = Planner(engine.layout, settings).plan(
            rows, plan, policy=CHAINED.get(method), key=plan is None
        )
        answer = engine.run([WindowRequest(planned, rows, QUESTIONS, keep=chained)])[0].unwrap()
        return planned if chained else None, answer

    def _share(self, last: int) -> float:
        """Share of the tokens of a window that our masks keep."""
        ours, all_tokens = (
            sum(block.tokens for block in strides.blocks[last - self._blocks : last])
            for strides in (self._pruned, self._dense)
        )
        return ours / all_tokens


def f1(p: np.ndarray, truth: np.ndarray) -> float:
    """F1 of yes against the dense answers; 1 where neither says yes."""
    yes, right = p > 0.5, truth > 0.5
    both = float((yes & right).sum())
    return 1.0 if not (yes | right).any() else 2 * both / float(yes.sum() + right.sum())


def table(
    cameras: Sequence[Mapping[str, Spent]], timed: Sequence[Mapping[str, Spent]]
) -> dict[str, dict[str, Any]]:
    """Every method against the dense windows and ours; means over cameras.

    Args:
        cameras: By the trained model.
        timed: By the model that is timed.
    """
    out = {}
    for method in cameras[0]:
        pairs = [(np.array(camera[method].p), np.array(camera["resend"].p)) for camera in cameras]
        apart = np.array([np.abs(p - truth).mean() for p, truth in pairs])
        ratios = np.array([np.mean(c[method].seconds) / np.mean(c["ours"].seconds) for c in timed])
        flops = [np.mean(camera[method].flops) / np.mean(camera["resend"].flops) for camera in timed]
        out[method] = {
            "dp": round(float(apart.mean()), 4),
            "dp_interval": interval(apart),
            "f1": round(float(np.mean([f1(p, truth) for p, truth in pairs])), 4),
            "time_over_ours": round(float(ratios.mean()), 3),
            "time_interval": interval(ratios),
            "flops_of_resend": round(float(np.mean(flops)), 4),
            "tokens": round(float(np.mean([np.mean(camera[method].tokens) for camera in cameras])), 1),
        }
    return out


class Bench:
    """Measures what is not measured yet.

    Args:
        keep: Folder of clips, frames, the model that is timed, and results.
        windows: Whole windows of a camera, on the trained and on the timed model.
        cameras: Of each kind, on the trained and on the timed model.
        fresh: Forget earlier results.
    """

    def __init__(
        self, keep: Path, windows: tuple[int, int], cameras: tuple[int, int], *, fresh: bool
    ) -> None:
        self.keep, self.cameras, self.masks = keep, cameras, vllm_masks()
        small = small_checkpoint(find_model(), keep / "small")
        self.sides = {
            "trained": Side(find_model(), windows[0]),
            "timed": Side(small, windows[1], shapes.labelled(load_layout(small), 0)),
        }
        sizes = f"{windows[0]}-{windows[1]}-{folder_digest(find_model())[:12]}"
        self.results = Results(keep / f"results-{sizes}.jsonl", fresh=fresh)

    def tables(self, kind: str, paths: Sequence[Path], cut: tuple[int, int]) -> dict[str, dict[str, Any]]:
        """Both footings of one kind of footage and one length of windows."""
        found: dict[str, list[dict[str, dict[str, Spent]]]] = {}
        for (name, side), count in zip(self.sides.items(), self.cameras, strict=True):
            made = self._stock(f"{kind}, {name}", side, paths[:count], cut)
            found[name] = [
                self._camera(f"{kind}, {name}", side, path, cut, sent)
                for path, sent in tqdm(
                    list(zip(paths[:count], made, strict=True)), desc=f"{kind}, {name}", disable=None
                )
            ]
        return {
            footing: table(*([camera[footing] for camera in found[name]] for name in self.sides))
            for footing in ("equal", "default")
        }

    def _camera(
        self, name: str, side: Side, path: Path, cut: tuple[int, int], sent: Spent | None
    ) -> dict[str, dict[str, Spent]]:
        """One camera on one model, by footing and method."""
        camera: Camera | None = None
        equal = {} if sent is None else {"vllm": sent}
        rated = {}
        methods = [method for method in METHODS if method in self.masks or method not in ("evs", "vidcom2")]
        for method in methods:
            for rate in dict.fromkeys((None, RATES.get(method))):
                key = f"{name}, {path.stem}, {method}, {rate}"
                if key not in self.results:
                    camera = camera or Camera(path, side, cut, self.masks)
                    self.results.add(key, asdict(camera.answers(method, rate)))
                spent = Spent(**self.results.found[key])
                if rate is None:
                    equal[method] = spent
                else:
                    rated[method] = spent
        return {"equal": equal, "default": equal | rated}

    def _stock(
        self, name: str, side: Side, paths: Sequence[Path], cut: tuple[int, int]
    ) -> list[Spent | None]:
        """Stock vLLM on several cameras; None where it is not installed."""
        if not self.masks:
            return [None] * len(paths)
        keys = [f"{name}, {path.stem}, vllm" for path in paths]
        missing = [
            (key, Camera(path, side, cut, self.masks))
            for key, path in zip(keys, paths, strict=True)
            if key not in self.results
        ]
        files = [camera.pictures(self.keep / f"frames-{n}.npy") for n, (_, camera) in enumerate(missing)]
        if files:
            job = answered(side.folder, side.prompt(cut[0] * cut[1]), files, cut, side.windows + 1)
            for (key, camera), windows in zip(missing, job, strict=True):
                self.results.add(key, asdict(camera.stock(windows)))
        for path in files:
            path.unlink()
        return [Spent(**self.results.found[key]) for key in keys]

    def close(self) -> None:
        """Free the models."""
        for side in self.sides.values():
            side.engine.close()


def summary(kinds: dict[str, dict[str, dict[str, dict[str, Any]]]], low: float) -> dict[str, Any]:
    """The last line: ratios at the longest windows and equal tokens, on rendered cameras."""
    rows = kinds["rendered, 80 frames" if "rendered, 80 frames" in kinds else next(iter(kinds))]["equal"]
    ours = rows["ours"]

    def beside(method: str) -> dict[str, float] | None:
        if method not in rows:
            return None
        return {"time": rows[method]["time_over_ours"], "dp": round(rows[method]["dp"] - ours["dp"], 4)}

    on_real = [kind["equal"]["ours"]["dp"] for name, kind in kinds.items() if name.startswith("real")]
    return {
        "vs_resend": rows["vllm" if "vllm" in rows else "resend"]["time_over_ours"],
        "vs_append": rows["append"]["time_over_ours"],
        "vs_evs": beside("evs"),
        "vs_vidcom2": beside("vidcom2"),
        "low_motion_flops_saved": low,
        "dp_real": on_real[-1] if on_real else None,
    }


def low_motion() -> float:
    """FLOPs that the default saves in a walk, at the shape of a 7B (bench-windows counts the same)."""
    layout = load_layout(checkpoint("internvl"))
    base = replace(
        PRESETS[DEFAULT_PRESET], blocks=shapes.BLOCKS, samples=shapes.FRAMES, key_every=shapes.PERIOD
    )
    keep = shapes.levels("default")["walk"]
    full = sum(shapes.full_size(layout, [1.0], Policy.FULL, base, 5))
    language, vision = shapes.full_size(layout, keep, base.policy, base, 5)
    whole, _ = shapes.full_size(layout, keep, Policy.PRUNE_ONLY, base, 5)
    return round(1 - (((shapes.PERIOD - 1) * language + whole) / shapes.PERIOD + vision) / full, 4)


def footage(
    count: int, cut: tuple[int, int], keep: Path, tower: Tower, *, real: bool
) -> Iterator[tuple[str, list[Path]]]:
    """Rendered cameras and real clips for one length of windows."""
    length = Cut(frames=cut[1], chain=10, shortest=cut[0] + 3)
    yield "rendered", rendered(count, keep, length)[-count:]
    where = find_footage() if real else None
    if where is not None:
        yield "real", list(real_clips(where, tower, length))[:count]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=6, help="of each kind")
    parser.add_argument("--windows", type=int, default=6, help="of each camera, behind the first")
    parser.add_argument(
        "--timed", type=int, nargs=2, default=(3, 2), metavar=("CAMERAS", "WINDOWS"), help="that are timed"
    )
    parser.add_argument("--frames", nargs="+", choices=tuple(CUTS), default=list(CUTS))
    parser.add_argument("--quick", action="store_true", help="one rendered camera, two windows: does it run?")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument(
        "--keep", type=Path, default=Path("out/peers-engine"), help="folder for clips and results"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    cameras, windows = (options.cameras, options.timed[0]), (options.windows, options.timed[1])
    if options.quick:
        cameras, windows = (1, 1), (2, 1)
    options.keep.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.keep, windows, cameras, fresh=options.fresh)
    kinds: dict[str, Any] = {}
    for frames in options.frames:
        tower, cut = bench.sides["trained"].tower, CUTS[frames]
        for kind, paths in footage(cameras[0], cut, options.keep, tower, real=not options.quick):
            if paths:
                name = f"{kind}, {frames} frames"
                kinds[name] = bench.tables(name, paths, cut)
                show(name, kinds[name])
    bench.close()
    print(json.dumps(summary(kinds, low_motion()) | {"tables": kinds}))


def show(name: str, footings: dict[str, dict[str, dict[str, Any]]]) -> None:
    """One table."""
    for footing, rows in footings.items():
        print(f"{name}, {footing} rates:")
        for method, row in rows.items():
            print(
                f"  {method:12} time {row['time_over_ours']:6.2f}  FLOPs {row['flops_of_resend']:6.1%}  "
                f"tokens {row['tokens']:7.1f}  |dp| {row['dp']:.4f}  F1 {row['f1']:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
