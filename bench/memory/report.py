"""What the bench prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.memory import history, schemes
from watchbench.questions import PRODUCT

Interval = tuple[float, float, float]
METRICS = ("recall", "mass", "evidence", "dp")
RIVALS = ("token", "frame", "visual", "semantic", "mosaic", "eager", "deferred", "random clusters", "uniform",
          "newest")  # fmt: skip


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


def fewer_splits(units: Sequence[dict[str, Any]], lazy: str, eager: str) -> float:
    """The share of eager splits that deferring saves."""
    splits = {name: sum(unit["counts"][name]["splits"] for unit in units) for name in (lazy, eager)}
    return float(1 - splits[lazy] / max(1, splits[eager]))


def less_time(units: Sequence[dict[str, Any]], lazy: str, eager: str) -> list[float]:
    """The share of the CPU time of upkeep and its questions that deferring saves, with its interval."""
    told = [1 - unit["counts"][lazy]["seconds"] / unit["counts"][eager]["seconds"] for unit in units]
    return [round(x, 3) for x in interval(told)]


def prefetching(units: Sequence[dict[str, Any]]) -> float:
    """Print hits, chance and waste of fetching ahead; returns the hits."""
    rows = [unit["prefetch"] for unit in units]
    print("\nprefetching:", {key: shown(interval([row[key] for row in rows])) for key in rows[0]})
    return float(np.mean([row["hits"] for row in rows]))


def schemes_report(told: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Print first tokens by scheme and what late splits save; returns both tables."""
    found = schemes.tables(told)
    for title, rows in found.items():
        print(f"\n{title}")
        for name, row in rows.items():
            print(f"{name:26}", row)
    return found


def report(
    units: Sequence[dict[str, Any]],
    histories: Sequence[dict[str, Any]],
    read: Sequence[dict[str, Any]],
    cuts: Mapping[str, Sequence[dict[str, Any]]],
    asked: Mapping[str, Sequence[dict[str, Any]]],
) -> dict[str, Any]:
    """Print everything that is there; returns what the last line says.

    Args:
        units: Units of "quality".
        histories: Units of "history".
        read: Units of "schemes".
        cuts: Of the stream with many cuts, by kind.
        asked: Other units of pairs of pasts, by kind.
    """
    out: dict[str, Any] = {}
    further: dict[str, Any] = {}
    if units:
        show("an hour: all streams", table(units))
        if changing := [unit for unit in units if "cut" in unit["stream"]]:
            show("an hour with a scene cut every ten minutes", table(changing))
        further["ours less others: mean, 95 %"] = against(units)
        by_layer(units)
        maintenance(units)
        every = table(units)
        for metric in ("recall", "mass", "evidence"):
            out[metric] = {name: round(row[metric][0], 3) for name, row in every.items() if metric in row}
        out["splits_deferred"] = round(fewer_splits(units, "ours", "eager"), 3)
        out["upkeep_time_deferred"] = less_time(units, "ours", "eager")
        out["prefetch_hits"] = round(prefetching(units), 3)
    if histories:
        out |= history_report(histories)
    further |= schemes_report(read) if read else {}
    for kind, some in asked.items():
        if some:
            further[kind] = history.table(some)
            print(f"\n{kind} on questions about the past")
            for name, row in further[kind].items():
                print(f"{name:24}", row)
    if rows := asked.get("rules"):
        out["per camera"] = {unit["stream"]: unit["rows"] for unit in rows}
    if rows := cuts_report(cuts):
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
