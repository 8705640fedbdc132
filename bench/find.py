"""Compare find with simpler searches over many rendered cameras: `make bench-find`.

Half of the cameras show people, falls and vehicles, the other half bags and crowds. Four questions are asked
of each half, so that half of the searches have no moment. The truth is (b), every window asked. The searches
are:

- find: the product's search
- find+likely: its hits, followed by what it names as likely but did not verify
- memory (a): the spans that the memory answers with yes, by their p(yes), without verification
- even (c): evenly spaced windows, each computed whole, for as many FLOPs as find
- embedding (d): windows whose block is nearest to that of the clearest moment of this kind on any camera
- newest (e): the last windows of every camera

Each camera recorded one stretch of minutes at its own time within seven hours. Frames are drawn at the size
of the model's input, without a codec. FLOPs are those of the language model, and of the tower for every block
that is loaded. Recall at k: the share of the truth's moments among the first k, or of k if there are more
moments.

`first_hit_s` is how long a person waits on a real fleet (`bench.find_fleet`), in wall-clock seconds. The
other times are for searches of the rendered cameras, on one thread in one process, without Kafka and Redis:
names that end in `core_s` are CPU seconds, the others wall-clock seconds.

An interrupted search continues with its next question when the bench is started again.

With `--model`, another checkpoint gives the answers and the truth, and does the searches (`watchbench smol
--checkpoint` writes one); the last line then has only the searches. `window_s`: wall-clock seconds of a whole
search per window that it computed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.find_day import of_a_day
from bench.find_fleet import first_hits
from bench.find_pictures import by_picture
from bench.find_ranking import by_ranking
from bench.find_shown import by_shown
from bench.find_world import KeptMemory, KeptWorld
from lookout.models import DEMO_QUESTIONS
from lookout.models.engines.born import frame_embeddings
from lookout.past.backtests import PastWindows
from lookout.past.backtests.windows import PastVerdict
from lookout.past.find import SHARE
from lookout.past.find.finding import Finder, SpanAnswer
from lookout.past.find.spans import PastSpan, ranked_spans
from lookout.past.find.types import FindQuestion, Hit
from lookout.streams.chains import PastScope
from lookout.v1.memory_pb2 import FindProgress, FindSummary
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from tests.find_world import (
    Filmed,
    FolderMemory,
    Spec,
    World,
    WorldRecords,
    answer_with,
    digest,
    moments,
    past_windows,
    settings,
)

KINDS = ("room", "carpark", "doorway")
HALVES = {"a": ("lying", "vehicle", "person"), "b": ("left", "many", "left")}
QUESTIONS = ("lying", "vehicle", "left", "many")
RANKS = (1, 5, 20)
OTHERS = ("memory", "even", "embedding", "newest")
Moment = tuple[str, int, int]
"""Camera, first and last window of the truth."""


@dataclass(slots=True)
class Found:
    """What a search names, the best first: camera and window of each. `flops`: what it cost."""

    windows: list[tuple[str, int]]
    flops: float = 0.0
    whole_s: float = 0.0
    whole_core_s: float = 0.0


class Checked(PastWindows):
    """Compares every window that a search computes with the truth."""

    def __init__(self, base: PastWindows, truth: Mapping[str, Mapping[int, float]]) -> None:
        super().__init__(base.settings, base.engine, base.planner, base.load, base.model_digest)
        object.__setattr__(self, "truth", truth)
        object.__setattr__(self, "differences", [])
        object.__setattr__(self, "computed", [])

    __slots__ = ("computed", "differences", "truth")
    truth: Mapping[str, Mapping[int, float]]
    differences: list[float]
    computed: list[Verdict]

    def verdicts(self, epoch: Any, *more: Any) -> Iterator[PastVerdict]:  # type: ignore[override]
        """As ever."""
        for past in PastWindows.verdicts(self, epoch, *more):
            expected = self.truth[epoch.camera][past.verdict.window]
            self.differences.append(abs(past.verdict.p_yes - expected))
            self.computed.append(past.verdict)
            yield past


@dataclass(slots=True)
class Search:
    """A question to one half of the cameras, and its truth."""

    question: str
    cameras: dict[str, Filmed]
    truth: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        for camera, filmed in self.cameras.items():
            self.truth += [(camera, *own) for own in moments(filmed.p_yes[self.question])]

    @property
    def flops(self) -> float:
        """Of asking every window."""
        return sum(
            sum(filmed.flops.values()) + sum(filmed.vision.values()) for filmed in self.cameras.values()
        )

    def hit(self, camera: str, window: int) -> Moment | None:
        """The moment of the truth that a window is of."""
        for moment in self.truth:
            if moment[0] == camera and moment[1] <= window <= moment[2]:
                return moment
        return None

    def moments_in(self, windows: Sequence[tuple[str, int]]) -> list[Moment | None]:
        """What each window is of; further windows of a moment are left out."""
        out: list[Moment | None] = []
        for camera, window in windows:
            moment = self.hit(camera, window)
            if moment is None or moment not in out:
                out.append(moment)
        return out


def filmed_world(cameras: int, lengths: Sequence[int], root: Path) -> KeptWorld:
    """The cameras, of as many minutes as `lengths` says, part by part; two minutes of each have an event."""
    world = KeptWorld(root)
    for number in range(cameras):
        world.add(camera_of(number, lengths[number * len(lengths) // cameras]))
    return world


def camera_of(number: int, minutes: int) -> Spec:
    """What is filmed by a camera: even numbers are of the first half, odd ones of the second."""
    half = "ab"[number % 2]
    draw = np.random.default_rng([7, number])
    where = draw.choice(minutes, 2, replace=False).tolist()
    what = draw.choice(HALVES[half], 2).tolist()
    events = dict(zip(where, what, strict=True))
    return Spec(f"{half}-{number}", KINDS[number % 3], 300 + number, minutes, events)


class Asked(KeptMemory):
    """A memory whose answers are kept, so that what asks for one again gets it, with what it cost."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.answers: dict[PastSpan, SpanAnswer] = {}

    def ask(self, spans: Sequence[PastSpan], question: str) -> list[SpanAnswer]:
        """The answer over each span; all calls have the same question."""
        new = [span for span in spans if span not in self.answers]
        self.answers |= dict(zip(new, super().ask(new, question), strict=True))
        return [self.answers[span] for span in spans]


def dear_searches(world: World, search: Search, share: float, keep: Path) -> dict[str, Any]:
    """The product's search and the memory alone; both are kept, so that a bench that was stopped goes on.

    Args:
        world: The cameras.
        search: The question.
        share: Of the windows that find may compute.
        keep: A file; delete it to search again.
    """
    if not keep.exists():
        memory = Asked(world)
        found, summary, hits, checked = find(world, search, share, memory)
        rows = {"find": found, "find+likely": with_likely(world, found, summary)}
        rows["memory"] = memory_alone(world, memory, search)
        kept = {
            "rows": rows,
            "cost": summary.cost,
            "ended": summary.ended,
            "differences": checked.differences,
            "hits": hits,
            "computed": checked.computed,
        }
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.with_suffix(".part").write_bytes(pickle.dumps(kept))
        keep.with_suffix(".part").rename(keep)
    out: dict[str, Any] = pickle.loads(keep.read_bytes())
    return out


def find(
    world: World, search: Search, share: float, memory: FolderMemory
) -> tuple[Found, FindSummary, list[Hit], Checked]:
    """The product's search, its hits and the windows that it computed."""
    truth = {camera: filmed.p_yes[search.question] for camera, filmed in search.cameras.items()}
    checked = Checked(past_windows(world), truth)
    finder = Finder(memory, WorldRecords(world), checked)
    world.loaded.clear()
    begun, begun_core = time.perf_counter(), time.process_time()
    hits: dict[int, Hit] = {}
    summary: FindSummary | None = None
    question = FindQuestion(DEMO_QUESTIONS[search.question], tuple(search.cameras), share=share)
    for event in finder.find(question):
        if isinstance(event, Hit):
            hits[event.number] = event
        elif not isinstance(event, FindProgress):
            summary = event
    assert summary is not None
    whole_s, whole_core_s = time.perf_counter() - begun, time.process_time() - begun_core
    vision = np.mean([flops for filmed in search.cameras.values() for flops in filmed.vision.values()])
    cost = summary.cost.flops + float(vision) * sum(world.loaded.values())
    windows = [(hits[number].camera, hits[number].verdict.window) for number in summary.hits]
    standing = [hits[number] for number in summary.hits]
    return Found(windows, cost, whole_s, whole_core_s), summary, standing, checked


def search_seconds(
    world: World, searches: Sequence[Search], found: Sequence[Found], share: float
) -> dict[str, float]:
    """Median seconds to the first hit of each search that has one, and of whole searches: on the clock and
    of a core."""
    clock: list[float] = []
    core: list[float] = []
    for search in (search for search, own in zip(searches, found, strict=True) if own.windows):
        finder = Finder(KeptMemory(world), WorldRecords(world), past_windows(world))
        question = FindQuestion(DEMO_QUESTIONS[search.question], tuple(search.cameras), share=share)
        begun, begun_core = time.perf_counter(), time.process_time()
        if any(isinstance(event, Hit) for event in finder.find(question)):
            clock.append(time.perf_counter() - begun)
            core.append(time.process_time() - begun_core)
    return {
        "search_first_hit_s": round(float(np.median(clock)), 2),
        "search_first_hit_core_s": round(float(np.median(core)), 2),
        "last_hit_s": round(float(np.median([own.whole_s for own in found])), 2),
        "last_hit_core_s": round(float(np.median([own.whole_core_s for own in found])), 2),
    }


def held_live(world: World, computed: Sequence[Verdict]) -> dict[str, float]:
    """How many of the windows that searches computed a live session would hold the KV of: each camera's
    newest, if it were asked about as its film ends."""
    newest = {camera: max(filmed.blocks) for camera, filmed in world.cameras.items()}
    held = sum(verdict.window == newest[verdict.camera] for verdict in computed)
    return {"computed": len(computed), "newest": held, "share": round(held / max(1, len(computed)), 4)}


def with_likely(world: World, found: Found, summary: FindSummary) -> Found:
    """What a search names, then the likely moments that it did not verify, each by its last window."""
    likely = sorted(
        (-one.proposed, one.camera, one.end_us)
        for one in summary.not_searched
        if one.HasField("proposed") and one.HasField("end_us")
    )
    windows = [last_window(world, camera, end_us) for _, camera, end_us in likely]
    return replace(found, windows=[*found.windows, *windows])


def last_window(world: World, camera: str, end_us: int) -> tuple[str, int]:
    """The last window that ends by a time."""
    return camera, (end_us - world.cameras[camera].begin_us) // settings().stride_us - 1


def memory_alone(world: World, memory: FolderMemory, search: Search) -> Found:
    """The spans that rank best, by the memory's p(yes); each stands for its last window."""
    pasts = memory.pasts(tuple(search.cameras))[0]
    queries = memory.queries(DEMO_QUESTIONS[search.question])
    spans = ranked_spans(pasts, queries, settings().window_us)
    asked = spans.part(0, max(64, len(spans) // 4))
    answers = memory.ask(asked, DEMO_QUESTIONS[search.question])
    order = sorted(zip(answers, asked, strict=True), key=lambda entry: -entry[0].p_yes)
    chosen: list[PastSpan] = []
    for answer, span in order:
        if answer.p_yes >= 0.5 and not {span.before, span.after} & set(chosen):
            chosen.append(span)
    windows = [last_window(world, span.camera, span.end_us) for span in chosen]
    return Found(windows, sum(answer.flops for answer in answers))


def by_answer(search: Search, windows: Sequence[tuple[str, int]]) -> Found:
    """Windows that were computed, those that say yes, the most probable first."""
    p_yes = {place: search.cameras[place[0]].p_yes[search.question][place[1]] for place in windows}
    return Found(sorted((place for place in p_yes if p_yes[place] >= 0.5), key=lambda place: -p_yes[place]))


def price(search: Search, key: bool) -> float:
    """FLOPs of a key window with the tower for its blocks, or of one in a chain with its newest block."""
    filmed = list(search.cameras.values())
    costs = [
        own.flops[index]
        for own in filmed
        for index, verdicts in own.epoch.verdicts.items()
        if (verdicts[0].basis == "key") == key
    ]
    vision = np.mean([flops for own in filmed for flops in own.vision.values()])
    return float(np.mean(costs) + vision * (settings().window_blocks if key else 1))


def even(search: Search, budget: float) -> Found:
    """Windows at even distances over all cameras, each computed whole."""
    places = [(camera, index) for camera, filmed in search.cameras.items() for index in filmed.blocks]
    count = max(1, round(budget / price(search, key=True)))
    return by_answer(search, [places[i] for i in np.linspace(0, len(places) - 1, count).round().astype(int)])


def newest(search: Search, budget: float) -> Found:
    """The last windows of every camera, as one chain each."""
    count = max(1, round(budget / price(search, key=False) / len(search.cameras)))
    return by_answer(
        search,
        [
            (camera, index)
            for camera, filmed in search.cameras.items()
            for index in sorted(filmed.blocks)[-count:]
        ],
    )


def embedding(world: World, search: Search, budget: float) -> Found:
    """Windows whose newest block is nearest to an example's; a camera of the other searches shows it."""
    example = _example(world, search)
    places = [(camera, index) for camera, filmed in search.cameras.items() for index in filmed.blocks]
    vectors = torch.stack([_vector(world.cameras[camera].blocks[index]) for camera, index in places])
    near = torch.nn.functional.cosine_similarity(vectors, example[None]).argsort(descending=True, stable=True)
    count = max(1, round(budget / price(search, key=True)))
    return by_answer(search, [places[i] for i in near[:count].tolist()])


def _example(world: World, search: Search) -> torch.Tensor:
    """The newest block of the clearest window of that kind on any camera."""
    best = max(
        (
            (filmed.p_yes[search.question][i], camera, i)
            for camera, filmed in world.cameras.items()
            for i in filmed.blocks
        ),
    )
    return _vector(world.cameras[best[1]].blocks[best[2]])


def _vector(block: Any) -> torch.Tensor:
    return frame_embeddings(block).mean(0)


def live_latency(world: World, search: Search, rounds: int = 6, windows: int = 15) -> float:
    """Median seconds of a live window during a search, over those without one; both are measured in turns.

    The search is another process with recall's niceness, on the same cores.
    """
    camera, filmed = next(iter(search.cameras.items()))
    watch = Watch(id="live", version=1, question=DEMO_QUESTIONS[search.question], rule=Rule(threshold=0.5))
    times: dict[bool, list[float]] = {False: [], True: []}
    child = os.fork()
    if not child:
        os.nice(10)
        while True:
            find(world, search, 1.0, KeptMemory(world))
    try:
        for number in range(2 * rounds):
            searching = bool(number % 2)
            os.kill(child, signal.SIGCONT if searching else signal.SIGSTOP)
            live = past_windows(world).verdicts(
                filmed.epoch, watch, PastScope(cameras=(camera,)), range(windows)
            )
            while True:
                begun = time.perf_counter()
                if next(live, None) is None:
                    break
                times[searching].append(time.perf_counter() - begun)
                time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return round(float(np.median(times[True]) / np.median(times[False])), 2)


def by_camera(searches: Sequence[Search], results: Sequence[Found]) -> dict[str, list[int]]:
    """Of each camera: moments of the truth, those among the first 20 of a search, named moments."""
    out: dict[str, list[int]] = {}
    for search, result in zip(searches, results, strict=True):
        first = search.moments_in(result.windows)[:20]
        for camera in search.cameras:
            counts = out.setdefault(camera, [0, 0, 0])
            counts[0] += sum(moment[0] == camera for moment in search.truth)
            counts[1] += sum(moment is not None and moment[0] == camera for moment in first)
            counts[2] += sum(own == camera for own, _ in result.windows)
    return out


def interval(values: Sequence[tuple[float, float]], rounds: int = 2000) -> list[float]:
    """95 % interval of a ratio of sums over cameras, drawn with replacement."""
    array = np.array(values, float).reshape(-1, 2)
    draw = np.random.default_rng(0)
    sums = array[draw.integers(0, len(array), (rounds, len(array)))].sum(1)
    ratios = sums[:, 0] / np.maximum(sums[:, 1], 1e-9)
    return [round(float(edge), 3) for edge in np.quantile(ratios[sums[:, 1] > 0], [0.025, 0.975])]


def scored(searches: Sequence[Search], results: Sequence[Found]) -> dict[str, Any]:
    """Recall at each rank and precision over all searches, with intervals over cameras."""
    out: dict[str, Any] = {}
    for rank in RANKS:
        reached = possible = 0
        cameras: list[tuple[float, float]] = []
        for search, result in zip(searches, results, strict=True):
            first = [moment for moment in search.moments_in(result.windows)[:rank] if moment is not None]
            reached, possible = reached + len(first), possible + min(rank, len(search.truth))
            # What a search can name at most is shared among its cameras: the interval is of this recall.
            weight = min(rank, len(search.truth)) / max(1, len(search.truth))
            cameras += [
                (
                    sum(moment[0] == camera for moment in first),
                    weight * sum(moment[0] == camera for moment in search.truth),
                )
                for camera in search.cameras
            ]
        out[f"recall_{rank}"] = round(reached / max(1, possible), 3)
        if rank == RANKS[-1]:
            out["recall_20_interval"] = [min(1.0, edge) for edge in interval(cameras)]
    right = sum(
        sum(m is not None for m in s.moments_in(r.windows)) for s, r in zip(searches, results, strict=True)
    )
    named = sum(len(s.moments_in(r.windows)) for s, r in zip(searches, results, strict=True))
    out["precision"] = round(right / named, 3) if named else 1.0
    out["cost_share"] = round(sum(r.flops for r in results) / sum(s.flops for s in searches), 4)
    return out


def options_of() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=12)
    parser.add_argument("--minutes", type=int, nargs="+", default=[10], help="of each part of the cameras")
    parser.add_argument("--keep", type=Path, default=Path("out/find"), help="where filmed cameras are kept")
    parser.add_argument("--share", type=float, default=SHARE, help="of the windows that find may compute")
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=QUESTIONS)
    parser.add_argument("--model", type=Path, help="checkpoint that answers instead; searches alone")
    return parser.parse_args()


@dataclass(slots=True)
class Searched:
    """What all searches found, by way of searching; and what find computed and showed."""

    searches: list[Search]
    rows: dict[str, list[Found]] = field(
        default_factory=lambda: {name: [] for name in ("find", "find+likely", *OTHERS)}
    )
    differences: list[float] = field(default_factory=list)
    computed: list[Verdict] = field(default_factory=list)
    shown: list[tuple[str, Sequence[Hit]]] = field(default_factory=list)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The scores of every way, printed as well."""
        table = {name: scored(self.searches, results) for name, results in self.rows.items()}
        print(f"{'':12}" + "".join(f"{name:>20}" for name in next(iter(table.values()))))
        for name, row in table.items():
            print(f"{name:12}" + "".join(f"{value!s:>20}" for value in row.values()))
        return table

    def told(self, find: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
        """Figures that every run has."""
        return {
            **{name: find[name] for name in ("recall_20", "precision", "cost_share")},
            "verified_equal": sum(difference <= 1e-4 for difference in self.differences),
            "differ": sum(difference > 1e-4 for difference in self.differences),
            "cameras": options.cameras,
            "minutes": sum(own.spec.minutes for search in self.searches for own in search.cameras.values())
            // len(options.questions),
            "moments": sum(len(search.truth) for search in self.searches),
            "searches": len(self.searches),
            "share": options.share,
        }


def searched(world: World, options: argparse.Namespace) -> Searched:
    """Ask every question of both halves, in every way."""
    out = Searched(
        [
            Search(question, {name: own for name, own in world.cameras.items() if name.startswith(half)})
            for half in HALVES
            for question in options.questions
        ]
    )
    for search in out.searches:
        name = f"{min(search.cameras)[0]}-{search.question}-{options.share:g}.pickle"
        dear = dear_searches(world, search, options.share, options.keep / "searched" / name)
        out.differences += dear["differences"]
        out.computed += dear["computed"]
        out.shown.append((search.question, dear["hits"]))
        for row, result in dear["rows"].items():
            out.rows[row].append(result)
        found, cost = dear["rows"]["find"], dear["cost"]
        others = {
            "even": even(search, found.flops),
            "embedding": embedding(world, search, found.flops),
            "newest": newest(search, found.flops),
        }
        for row, result in others.items():
            out.rows[row].append(replace(result, flops=found.flops))
        print(
            f"{search.question:8} {min(search.cameras):6} moments {len(search.truth):3}, "
            f"hits {len(found.windows):3}, "
            f"{cost.windows} of {cost.windows_total} windows, ended: {dear['ended']}",
            flush=True,
        )
    return out


def main() -> None:
    """Film, search, print a table and one line of JSON."""
    options = options_of()
    torch.set_num_threads(1)
    if options.model is not None:
        answer_with(options.model)
        options.keep /= digest()[:12]
    world = filmed_world(options.cameras, options.minutes, options.keep)
    found = searched(world, options)
    table = found.tables()
    if options.model is not None:
        finds = found.rows["find"]
        cost = {
            "search_s": round(float(np.median([own.whole_s for own in finds]))),
            "window_s": round(sum(own.whole_s for own in finds) / max(1, len(found.computed)), 2),
            "window_gflops": round(sum(own.flops for own in finds) / max(1, len(found.computed)) / 1e9, 1),
        }
        print(json.dumps({**found.told(table["find"], options), **cost, "tables": {"searches": table}}))
        return
    fleet = first_hits()
    day = of_a_day(FolderMemory(world).pasts(("*",))[0])
    print(
        json.dumps(
            {
                "first_hit_s": fleet["first_hit_s"],
                **search_seconds(world, found.searches, found.rows["find"], options.share),
                **found.told(table["find"], options),
                "rank_ms_1000": day["rank_ms"],
                "landmark_bytes_camera_hour": round(day["landmark_bytes"] / day["cameras"] / day["hours"]),
                "live_latency": live_latency(world, found.searches[0]),
                "tables": {
                    "searches": table,
                    "fleet": {"first_hit": fleet},
                    "live": {"windows": held_live(world, found.computed)},
                    "day": {"ranked": day},
                    "shown": by_shown(world, found.shown),
                    "pictures": by_picture(world, QUESTIONS, interval),
                    "ranking": by_ranking(world, found.searches, interval),
                },
                "by_camera": {
                    name: by_camera(found.searches, results) for name, results in found.rows.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
