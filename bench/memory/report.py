"""What the bench prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.memory import history, schemes
from bench.memory.budgets import FRAMES
from bench.memory.streams import STEP_S
from bench.memory.timing import POINTS
from bench.memory.world import BUDGET
from bench.plots import Lines, line_chart
from lookout.past.memory import LINKS, Predictor
from watchbench.questions import PRODUCT

Interval = tuple[float, float, float]
METRICS = ("recall", "mass", "evidence", "dp")
RIVALS = ("token", "frame", "visual", "semantic", "mosaic", "eager", "deferred", "formula", "random clusters",
          "uniform", "newest")  # fmt: skip
WAYS = ("none", "token", "frame", "ours", "ours, no representatives", "ours, 256 representatives",
        "ours, all representatives", "mosaic")  # fmt: skip
DRAWN = ("token", "frame", "ours", "ours, all representatives", "mosaic", "none")
STAGES = ("retrieve_s", "move_s", "attend_s")
GROWING = ("visual", "clusters", "index_share", "upkeep_share", "kv_bytes", "build_s", "recompute_s")
BOUNDED = "ours, 256 representatives"
MOVED = (
    ("token, row by row", "token", "serial"),
    ("token, gathered", "token", "gathered"),
    ("ours", "ours", "serial"),
    ("ours, gathered", "ours", "gathered"),
    ("ours, prefetched", "ours, prefetched", "overlapped"),
)
"""Ways over a link: what is said, the way, and how its bytes move."""


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Mean and bootstrap 95 % interval."""
    told = np.array(values, dtype=np.float64)
    draw = np.random.default_rng(seed)
    means = told[draw.integers(0, len(told), (2000, len(told)))].mean(1)
    return float(told.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def shown(told: Interval, digits: int = 3) -> str:
    """A mean with its interval."""
    mean, low, high = (f"{x:.{digits}f}" for x in told)
    return f"{mean} [{low}, {high}]"


def rows_of(units: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All questions of all streams."""
    return [row for unit in units for row in unit["questions"]]


def values(rows: Sequence[dict[str, Any]], policy: str, metric: str) -> list[float] | None:
    """One policy's metric over questions (evidence: of those with something to find)."""
    if metric == "dp":
        return [abs(row["policies"][policy]["p"] - row["p_all"]) for row in rows]
    rows = [row for row in rows if metric != "evidence" or row["shown"] > 0]
    told = [row["policies"][policy].get(metric) for row in rows]
    return None if None in told or not told else [float(x) for x in told]


def table(units: Sequence[dict[str, Any]]) -> dict[str, dict[str, Interval]]:
    """Per policy: recall, mass, evidence and |dp| with intervals."""
    rows = rows_of(units)
    out: dict[str, dict[str, Interval]] = {}
    for policy in rows[0]["policies"]:
        told = {metric: values(rows, policy, metric) for metric in METRICS}
        out[policy] = {metric: interval(found) for metric, found in told.items() if found}
    return out


def show(title: str, told: dict[str, dict[str, Interval]]) -> None:
    """Print a table of policies."""
    print(f"\n{title}")
    print(f"{'policy':32}" + "".join(f"{metric:>24}" for metric in METRICS))
    for name, row in sorted(told.items(), key=lambda item: -item[1].get("evidence", (0,))[0]):
        print(f"{name:32}" + "".join(f"{shown(row[m]) if m in row else '':>24}" for m in METRICS))


def against(units: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Print ours minus each rival, question by question, with intervals; returns these by rival."""
    print("\nours minus each, question by question (an interval that leaves out 0 is a difference)")
    rows = rows_of(units)
    out: dict[str, dict[str, list[float]]] = {}
    for rival in RIVALS:
        less: dict[str, Interval] = {}
        for metric in ("recall", "mass", "evidence"):
            ours, theirs = values(rows, "ours", metric), values(rows, rival, metric)
            if ours and theirs:
                less[metric] = interval([a - b for a, b in zip(ours, theirs, strict=True)])
        print(f"{rival:32}" + "   ".join(f"{metric} {shown(less[metric])}" for metric in less))
        out[rival] = {metric: [round(edge, 3) for edge in known] for metric, known in less.items()}
    return out


def by_layer(units: Sequence[dict[str, Any]]) -> None:
    """Print evidence per layer and per question of some policies."""
    rows = [row for row in rows_of(units) if row["shown"] > 0]
    print("\nevidence by layer, then by question")
    for policy in ("ours", "mosaic", "visual", "semantic", "frame", "token", "exact"):
        layers = np.mean([row["policies"][policy]["layers"] for row in rows], 0)
        asked = {
            name: np.mean([r["policies"][policy]["evidence"] for r in rows if r["question"] == name])
            for name in PRODUCT
            if any(r["question"] == name for r in rows)
        }
        print(
            f"{policy:12}",
            " ".join(f"{x:.2f}" for x in layers),
            {name: round(float(x), 2) for name, x in asked.items()},
        )


def history_report(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Print how often questions about the past are answered rightly, what attention weighs, and bytes on the
    device by length; returns what the last line says."""
    found = history.table(told)
    print("\nquestions about the past: of two histories, how often that with the episode gets more")
    for name, row in sorted(found.items(), key=lambda item: -item[1]["chosen"]):
        print(f"{name:16}", row)
    wordings = [f"{name} {n + 1}" for name in PRODUCT for n in range(history.WORDINGS)]
    together = np.mean([one["activated"]["map"] for one in told], 0).round(3).tolist()
    lengths = told[0]["bytes"]
    return {
        "accuracy": {name: row["chosen"] for name, row in found.items()},
        "tables": {
            "history": found,
            "coverage": _mean_rows([one["activated"]["coverage"] for one in told], "attention"),
            "frames alike": _mean_rows([one["activated"]["alike"] for one in told], "cosine"),
            "activated together": {
                name: dict(zip(wordings, row, strict=True))
                for name, row in zip(wordings, together, strict=True)
            },
            "bytes by minutes": {
                minutes: {
                    key: round(float(np.mean([one["bytes"][minutes][key] for one in told])))
                    for key in lengths[minutes]
                }
                for minutes in lengths
            },
        },
    }


def _mean_rows(rows: Sequence[dict[str, float]], column: str) -> dict[str, dict[str, float]]:
    return {key: {column: round(float(np.mean([row[key] for row in rows])), 4)} for key in rows[0]}


def maintenance(units: Sequence[dict[str, Any]]) -> None:
    """Print what upkeep did, means over streams."""
    print("\nmaintenance, means over streams")
    for name, keys in units[0]["counts"].items():
        means = {key: round(float(np.mean([u["counts"][name][key] for u in units])), 4) for key in keys}
        print(f"{name:12}", means)
    for lazy, eager in (("ours", "eager"), ("deferred", "eager"), ("mosaic", "mosaic, eager")):
        print(f"splits of {lazy} against eager: {-fewer_splits(units, lazy, eager):+.1%}")


def splits_by_residency(units: Sequence[dict[str, Any]], budgets: Sequence[dict[str, Any]]) -> None:
    """Print how many splits deferring saves where less is on the device."""
    eager = sum(unit["counts"]["eager"]["splits"] for unit in units)
    for size in budgets[0]["splits"]:
        share = 1 - sum(one["splits"][size] for one in budgets) / max(1, eager)
        print(f"splits of ours with {int(size) >> 20} MB on the device: {-share:+.1%}")


def fewer_splits(units: Sequence[dict[str, Any]], lazy: str, eager: str) -> float:
    """The share of eager splits that deferring saves."""
    splits = {name: sum(unit["counts"][name]["splits"] for unit in units) for name in (lazy, eager)}
    return float(1 - splits[lazy] / max(1, splits[eager]))


def less_time(units: Sequence[dict[str, Any]], lazy: str, eager: str) -> list[float]:
    """The share of the CPU time of upkeep and its questions that deferring saves, with its interval."""
    told = [1 - unit["counts"][lazy]["seconds"] / unit["counts"][eager]["seconds"] for unit in units]
    return [round(x, 3) for x in interval(told)]


def prefetching(units: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Print hits, chance and waste of every predictor; returns the hits."""
    print("\nprefetching: hits, chance, bytes moved for nothing, each with its interval")
    hits: dict[str, float] = {}
    for predictor in (Predictor.QUERY, Predictor.PROJECTED, Predictor.RESIDUAL):
        rows = [unit["prefetch"][predictor.value] for unit in units]
        print(f"{predictor.value:12}", {key: shown(interval([r[key] for r in rows])) for key in rows[0]})
        hits[predictor.value] = float(np.mean([row["hits"] for row in rows]))
    kinds = {key: shown(interval([u["together"][key] for u in units])) for key in units[0]["together"]}
    print("\nclusters fetched together (Jaccard):", kinds)
    return hits


def mean_of(longs: Sequence[dict[str, Any]], point: str, way: str, key: str = "first_token_s") -> float:
    """Mean over the long streams."""
    return float(np.mean([long[point][way][key] for long in longs]))


def ratio(longs: Sequence[dict[str, Any]], above: tuple[str, str], below: tuple[str, str]) -> list[float]:
    """Per long stream the time at one (length, way) by that at another."""
    return [
        long[above[0]][above[1]]["first_token_s"] / long[below[0]][below[1]]["first_token_s"]
        for long in longs
    ]


Rows = dict[str, dict[str, float]]


def lengths_report(longs: Sequence[dict[str, Any]]) -> dict[str, Rows]:
    """Print the times by length and, at an hour, by budget, over links and by stage; returns the tables."""
    print(f"\ntime to the first token (CPU ms), means over {len(longs)} streams, by length")
    first: Rows = {}
    size: Rows = {}
    for point in POINTS:
        row = {way: round(mean_of(longs, point, way) * 1000, 1) for way in WAYS}
        more = {key: round(float(np.mean([long[point][key] for long in longs])), 4) for key in GROWING}
        more["all representatives"] = mean_of(longs, point, "ours, all representatives", "representatives")
        print(f"{point:5}", row, more)
        first[point] = row | {"64 frames computed again": round(more["recompute_s"] * 1000, 1)}
        size[point] = more
    intervals_report(longs)
    budget = by_budget(longs)
    links = over_links(longs)
    shares = {key: mean_of(longs, "1h", "ours", key) / mean_of(longs, "1h", "ours") for key in STAGES}
    print("\nshares of an answer at an hour:", {key: round(share, 3) for key, share in shares.items()})
    return {
        "first token, CPU ms, by history": first,
        "what grows with history": size,
        "first token at an hour, CPU ms, by frames read": budget,
        "first token at an hour over a link, ms": links,
    }


def intervals_report(longs: Sequence[dict[str, Any]]) -> None:
    """Print how times grow from ten minutes to ten hours, and token level by each way, with intervals."""
    for way in WAYS:
        print(f"10 h by 10 min, {way}:", [shown(growth(long, way), 2) for long in longs])
    for way in WAYS[1:]:
        print(f"token level by {way}, 1 h:", [shown(turns(long["1h"], "token", way), 2) for long in longs])
    for point in POINTS:
        added = {
            way: [long[point][way]["first_token_s"] - long[point]["none"]["first_token_s"] for long in longs]
            for way in ("token", "ours")
        }
        told = [a / b for a, b in zip(added["token"], added["ours"], strict=True)]
        print(
            f"what the memory adds to an answer, token level by ours, {point}:", [round(x, 2) for x in told]
        )


def by_budget(longs: Sequence[dict[str, Any]]) -> Rows:
    """Print CPU ms at an hour by frame budget; returns the rows by policy."""
    told = [long["1h"]["by_budget"] for long in longs]
    rows: Rows = {}
    for policy in ("ours", "token"):
        rows[policy] = {
            str(n): round(float(np.mean([t[f"{policy} {n}"] for t in told])) * 1000, 1) for n in FRAMES
        }
        print(f"1 h by frame budget, {policy} (ms):", rows[policy])
    return rows


def over_links(longs: Sequence[dict[str, Any]]) -> Rows:
    """Print ms of an answer at an hour over each modelled link; returns the rows by link."""
    print("\nan hour over a link (ms): token level gathered on the host, ours without and with prefetching")
    rows: Rows = {}
    for link in LINKS:
        row = rows[link.name] = {}
        for name, way, how in MOVED:
            told = [long["1h"][way]["links"][link.name][how] for long in longs]
            row[name] = round(float(np.mean(told)) * 1000, 1)
        print(f"{link.name:14}", row)
    return rows


def budgets_report(told: Sequence[dict[str, Any]]) -> None:
    """Print recall and evidence by frame budget, over all streams and questions."""
    print(f"\nby frame budget, {len(told)} streams")
    for frames in FRAMES:
        for policy in told[0]["frames"][str(frames)]:
            rows = rows_by_budget(told, frames, policy)
            seen = [row for row in rows if row["shown"]]
            cells = {
                "recall": shown(interval([row["recall"] for row in rows])),
                "evidence": shown(interval([row["evidence"] for row in seen])),
                "of what 64 frames may hold": shown(interval([row["evidence_64"] for row in seen])),
                "dp": shown(interval([row["dp"] for row in rows])),
            }
            print(f"{frames:4} {policy:8}", cells)


def rows_by_budget(told: Sequence[dict[str, Any]], frames: int, policy: str) -> list[dict[str, Any]]:
    """One policy's rows at a frame budget, of all streams."""
    return [row for one in told for row in one["frames"][str(frames)][policy]]


def found_by_budget(told: Sequence[dict[str, Any]], frames: int, policy: str) -> float:
    """Mean evidence, of what 64 frames may hold."""
    rows = rows_by_budget(told, frames, policy)
    return float(np.mean([row["evidence_64"] for row in rows if row["shown"]]))


def fewest_frames(told: Sequence[dict[str, Any]]) -> int:
    """The smallest frame budget at which ours finds as much evidence as token level does with 64 frames."""
    aim = found_by_budget(told, BUDGET, "token")
    return next((n for n in FRAMES if found_by_budget(told, n, "ours") >= aim), FRAMES[-1])


def executors_report(told: Sequence[dict[str, Any]]) -> None:
    """Print encoding and attention, means and extremes over streams."""
    print(f"\nencoding (ms a frame) and attention (ms), {len(told)} streams: mean [least, largest]")
    for part in told[0]:
        for name in told[0][part]:
            found = [one[part][name] * 1000 for one in told]
            print(f"{name:32} {np.mean(found):.2f} [{min(found):.2f}, {max(found):.2f}]")


def turns(row: dict[str, Any], above: str, below: str) -> Interval:
    """The ratio of two ways' medians, and its bootstrap interval over turns."""
    told = [np.array(row[way]["turns"]) for way in (above, below)]
    draw = np.random.default_rng(0).integers(0, len(told[0]), (2000, len(told[0])))
    found = np.median(told[0][draw], 1) / np.median(told[1][draw], 1)
    middle = float(np.median(told[0]) / np.median(told[1]))
    return middle, float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


def growth(long: dict[str, Any], way: str) -> Interval:
    """Ten hours by ten minutes: the ratio of medians, and its bootstrap interval over turns."""
    return turns({point: long[point][way] for point in ("10h", "10m")}, "10h", "10m")


def shapes_report(told: Sequence[dict[str, Any]]) -> Rows:
    """Print the times at the shape of a 7B; returns first tokens (CPU ms) and token level by ours, by
    samples a second."""
    print(f"\none layer of the shape of a 7B, an hour (CPU ms), means over {len(told)} histories")
    out: Rows = {}
    for rate in told[0]:
        rows = [one[rate] for one in told]
        out[rate] = {"tokens": rows[0]["tokens"]}
        for way in ("none", "token", "frame", "ours"):
            cells = {
                key: round(float(np.mean([row[way][key] for row in rows])) * 1000, 1)
                for key in ("first_token_s", *STAGES)
            }
            links = {
                link.name: round(
                    float(np.mean([row[way]["links"][link.name]["gathered"] for row in rows])) * 1e3, 1
                )
                for link in LINKS
            }
            print(f"{rate:>4} a second, {way:6}", cells, "gathered over a link", links)
            out[rate][way] = cells["first_token_s"]
        print(
            f"{rate:>4} a second: {rows[0]['tokens']} tokens, {rows[0]['clusters']} clusters in "
            f"{rows[0]['visual']} visual ones; keys on the device {rows[0]['key_bytes'] / 1e6:.0f} MB, index "
            f"{np.mean([row['index_share'] for row in rows]):.2%} of the KV; token level by ours",
            [shown(turns(row, "token", "ours"), 2) for row in rows],
        )
        ratios = [turns(row, "token", "ours") for row in rows]
        for name, at in (("token by ours", 0), ("least", 1), ("largest", 2)):
            out[rate][name] = round(float(np.mean([one[at] for one in ratios])), 2)
    return out


def plots(longs: Sequence[dict[str, Any]], told: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write what is there as SVG: time to the first token by length of history, evidence by frame budget."""
    if longs:
        lines = [
            Lines(way, [(POINTS[p] * STEP_S / 3600, mean_of(longs, p, way) * 1000) for p in POINTS])
            for way in DRAWN
        ]
        title = "Time to the first token by length of history"
        (folder / "memory-length.svg").write_text(line_chart(title, "hours of history", "CPU ms", lines))
    if told:
        found = [
            Lines(policy, [(frames, found_by_budget(told, frames, policy)) for frames in FRAMES])
            for policy in ("ours", "frame", "token", "uniform")
        ]
        title = "Evidence by frame budget, of what 64 frames may hold"
        (folder / "memory-budget.svg").write_text(line_chart(title, "frames of tokens", "evidence", found))


def schemes_report(told: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Print first tokens by scheme and what late splits save; returns both tables."""
    found = schemes.tables(told)
    for title, rows in found.items():
        print(f"\n{title}")
        for name, row in rows.items():
            print(f"{name:26}", row)
    return found


def report(  # noqa: PLR0917
    units: Sequence[dict[str, Any]],
    histories: Sequence[dict[str, Any]],
    budgets: Sequence[dict[str, Any]],
    executors: Sequence[dict[str, Any]],
    longs: Sequence[dict[str, Any]],
    shapes: Sequence[dict[str, Any]],
    read: Sequence[dict[str, Any]],
    folder: Path,
    cuts: Mapping[str, Sequence[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Print everything that is there; returns what the last line says."""
    out: dict[str, Any] = {}
    further: dict[str, Any] = {}
    plots(longs, budgets, folder)
    if longs:
        further |= lengths_report(longs)
        out["ttft_vs_token"] = round(float(np.mean(ratio(longs, ("1h", "token"), ("1h", "ours")))), 2)
        if budgets:
            few = fewest_frames(budgets)
            by = [long["1h"]["by_budget"] for long in longs]
            out["ttft_vs_token_equal_evidence"] = round(
                float(np.mean([t[f"token {BUDGET}"] / t[f"ours {few}"] for t in by])), 2
            )
            out["frames_equal_evidence"] = few
        out["flat_10m_10h"] = round(float(np.mean(ratio(longs, ("10h", BOUNDED), ("10m", BOUNDED)))), 2)
    if units:
        show("an hour: all streams", table(units))
        if changing := [unit for unit in units if "cut" in unit["stream"]]:
            show("an hour with a scene cut every ten minutes", table(changing))
        further["ours less others: mean, 95 %"] = against(units)
        by_layer(units)
        maintenance(units)
        hits = prefetching(units)
        every = table(units)
        for metric in ("recall", "mass", "evidence"):
            out[metric] = {name: round(row[metric][0], 3) for name, row in every.items() if metric in row}
        out["splits_deferred"] = round(fewer_splits(units, "ours", "eager"), 3)
        out["upkeep_time_deferred"] = less_time(units, "ours", "eager")
        out["prefetch_hits"] = round(max(hits.values()), 3)
    if histories:
        out |= history_report(histories)
    if units and len(budgets) == len(units):
        splits_by_residency(units, budgets)
    if budgets:
        budgets_report(budgets)
    if executors:
        executors_report(executors)
    if shapes:
        at_7b = shapes_report(shapes)
        out["ttft_vs_token_7b"] = {rate: row["token by ours"] for rate, row in at_7b.items()}
        further["one layer of a 7B's shape, CPU ms, by samples a second"] = at_7b
    if longs:
        out["index_share"] = round(float(np.mean([long["10h"]["index_share"] for long in longs])), 4)
    further |= schemes_report(read) if read else {}
    if rows := cuts_report(cuts or {}):
        further["a cut a minute"] = rows
    return out | ({"tables": out.get("tables", {}) | further} if further else {})


def cuts_report(cuts: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Print what policies find and answer where the scene changes every minute, by policy; returns the rows.

    Args:
        cuts: Units of "quality", "history" and "schemes"; what is missing has empty cells.
    """
    columns: dict[str, dict[str, Any]] = {}
    if cuts.get("quality"):
        found = table(cuts["quality"])
        for metric in ("recall", "mass", "evidence"):
            columns[metric] = {name: round(row[metric][0], 3) for name, row in found.items() if metric in row}
    if cuts.get("history"):
        asked = history.table(cuts["history"])
        for column in ("chosen", "chosen 95 %"):
            columns[column] = {name: row[column] for name, row in asked.items()}
    if cuts.get("schemes"):
        first = schemes.tables(cuts["schemes"])["first token"]
        columns["first token over ours"] = {name: row["over ours"] for name, row in first.items()}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = {name: {told: column.get(name, "") for told, column in columns.items()} for name in names}
    if rows:
        print("\na cut a minute")
    for name, row in rows.items():
        print(f"{name:26}", row)
    return rows
