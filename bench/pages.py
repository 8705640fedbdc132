"""Writes docs/results from the committed results of the benches: `python -m bench.pages`, or `make results`.

Each result gets one page with every figure of its last line; an index lists result, command, device, commit
and date. The five figures of the README are written between its marks. A test checks that pages and results
agree.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from bench.beside import BESIDE
from bench.plots import Bars, Lines, bar_chart, heat_map, line_chart
from bench.record import RESULTS, ROOT, Record, bundled
from lookout.models import TINY
from lookout.models.questions import QUESTIONS_FILE
from watchbench.evaluation.choices import MARGINS
from watchbench.questions import QUESTIONS

DOCS = ROOT / "docs" / "results"
PAPERS, TEMPLATE = ROOT / "docs" / "papers.md", ROOT / "bench" / "papers.template"
BY_CAMERA = "per camera"
"""What intervals are drawn from: in the result's file alone."""
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"

TITLES = {
    "anchors": "How often a frame must be encoded whole",
    "codecsight": "CodecSight's figures with a small model",
    "codecsight-16": "CodecSight's policies on sixteen cameras",
    "codecsight-thresholds": "Motion-vector thresholds in the paper's unit, on real clips",
    "codecsight-flops": "FLOPs saved at full model size, by number of questions and by key-window interval",
    "codecsight-gop": "Groups of pictures of 4, 8 and 16 samples, refreshed only at keyframes",
    "codecsight-motion": "CodecSight's figure 14: cameras in thirds by their motion",
    "codecsight-sweeps": "CodecSight's figures 16 and 17: stride and threshold (ignore its figure 18)",
    "crowds-choosing": "Choosing a mask that keeps more where many people move",
    "crowds": "Masks that keep more where many people move",
    "capacity": "What the fleet costs compared with plain decoding",
    "console": "The console in a browser with a thousand cameras",
    "health": "Camera health: faults found, false alarms and CPU",
    "find": "Find on forty cameras: recall, precision and cost of several ways to propose moments",
    "far": "Films whose answers lie in no single stride: accuracy of windows, strides and chosen frames",
    "find-smol": "Find with a real language model: recall, precision and cost",
    "cuts": "Answers after a cut (the picture jumps), with masks and with every token",
    "kept_tokens": "Which kept tokens and texts bring answers close to those with every token",
    "gates": "Gates and a second opinion: precision, recall and cost",
    "arm64-images": "Images for arm64, run under emulation",
    "gpu": "Whether a GPU gives the same results, and how fast it is",
    "gpu-images": "Decode's GPU image: its size, and which parts of it run without a GPU",
    "gpu-images-vllm": "GPU images with vLLM: their sizes, and which parts of them run without a GPU",
    "gateway": "The gateway's history: rows per second, lists, timelines, clips",
    "motion": "How much of the changed content motion vectors find",
    "recordings-prefill": "Prefill time by length, and overlap with decoding",
    "windows_fidelity-20": "How reuse changes answers in windows of 20 frames",
    "masks": "How many tokens each pruning policy keeps, and how it changes answers",
    "bits": "Masks from the number of bits that a codec spent on each block: changes that they find",
    "bits-answers": "Answers with masks from bits, motion vectors and luma, at the same number of tokens",
    "masking": "What privacy masks cost, by picture size",
    "memory": "What a memory reads, and how good its answers are",
    "memory-rules": "Retrieval rules of the memory, compared on six more streams",
    "memory-rivals": "Memory compared with HERMES and SimpleStream, on questions about the past",
    "memory-cuts": "Memory of a stream whose scene changes every minute",
    "memory-schemes": "Time to the first token by scheme, and what deferred splits save",
    "memory_cost": "What a camera's memory costs",
    "peers_engine": "Sliding windows compared with other methods: time, FLOPs and answers",
    "peers": "Time to read samples of a recording, compared with torchcodec",
    "recordings": "How pruning a recording's KV changes answers",
    "recordings-long": "How pruning a recording's KV changes answers in clips of 128 and 256 frames",
    "gateway-faults": "Writes over the API while gateway, Kafka and PostgreSQL are killed",
    "notify-faults": "Notifications while notify and Kafka are killed and a target fails half the time",
    "recordings-faults": "Jobs about recordings while processes are killed",
    "recordings-fleet": "Recordings on several workers, with decode pods, and next to live cameras",
    "saving": "Arithmetic saved on real clips of fixed cameras",
    "convergence": "A controller that reads ten thousand cameras for the first time",
    "scale": "Controller and agents at ten thousand cameras",
    "smol": "Other methods, reuse and pruned KV with a real language model",
    "sight-harmless": "Scenes that only resemble a fall",
    "sight-dense": "What the tiny model sees in windows of 80 frames after more training with every token",
    "sight-mrope": "What a tiny model of a second architecture sees in windows of 20 frames",
    "sight-real": "What the tiny model sees if its tower was trained on real clips",
    "sight-before": "What the bundled model saw before it was trained on real clips",
    "sight-falls": "Falls in real clips that were not looked at when weights were chosen",
    "sight-gain": "The bundled model before and after training on real clips, on rendered cameras",
    "sight-20": "What the tiny model sees in windows of 20 frames",
    "sight-80": "What the tiny model sees in windows of 80 frames",
    "unreferenced": "Bytes that a camera saves by not sending pictures that no other picture refers to",
    "windows-flops": "FLOPs of sliding windows",
    "worth": "Whether the default is worth its FLOPs, compared with simpler choices of frames",
    "windows_fidelity-80": "How reuse changes answers in windows of 80 frames",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure of the README: what it is, its value, compared with what, and the page about it."""

    what: str
    result: str
    value: Callable[[Mapping[str, Any]], str]
    compared: str | Callable[[Mapping[str, Any]], str]
    page: str


def _less(saved: float) -> str:
    """How many times less is computed where this share is saved."""
    return f"{1 / (1 - saved):.1f}×"


def _window(figures: Mapping[str, Any]) -> str:
    saved = figures["flops_saved"]["1 questions"]
    walk, night, fall = (_less(saved[f"default, {clip}"]) for clip in ("walk", "night", "fall"))
    return f"{walk} less (people walking), {night} less (a night), {fall} less (a fall at night)"


def _hour(figures: Mapping[str, Any]) -> str:
    hour = figures["hour_s"]
    torchcodec, vllm = hour["torchcodec_over_ours"], hour["vllm_over_ours"]
    return f"{torchcodec:.1f}× faster than (a), {vllm:.1f}× faster than (b)"


def _right(name: str) -> Callable[[Mapping[str, Any]], str]:
    def both(figures: Mapping[str, Any]) -> str:
        row = figures["tables"]["rivals"][name]
        return f"F1 {row['product']:.2f} (simple), {row['contextual']:.2f} (contextual)"

    return both


HEADLINES = (
    Headline(
        "Arithmetic of a 7B model, a 40 s window every 8 s, one question (counted)",
        "codecsight-flops",
        _window,
        "every token of every window",
        "windows",
    ),
    Headline(
        "Arithmetic on six real clips of fixed cameras, a 10 s window every 2 s",
        "saving",
        lambda figures: f"{_less(figures['saved'])} less",
        "every token of every window",
        "windows",
    ),
    Headline(
        "Time from the command to the answer, one question about an hour of 1080p video, tiny model",
        "recordings-fleet",
        _hour,
        "(a) torchcodec with the stock transformers model, (b) vLLM's video input",
        "recordings",
    ),
    Headline(
        "Accuracy on simple questions, and on contextual ones (they depend on earlier pictures), tiny model",
        "worth",
        _right("default"),
        lambda figures: (
            f"{_right('full')(figures)} with every token; {_right('even 16')(figures)} with 16 evenly spaced "
            "frames, for about the same arithmetic"
        ),
        "windows",
    ),
    Headline(
        "CPU time of a whole fleet including its broker, 8 live cameras, tiny model",
        "capacity",
        lambda figures: f"{figures['fleet']['8 cameras']['live']['multiple']:.1f}× as much",
        "FFmpeg decoding the same footage",
        "operations",
    ),
)


def results() -> dict[str, Record]:
    """The committed results by name."""
    return {path.stem: Record.read(path) for path in sorted(RESULTS.glob("*.json"))}


def leaves(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Every number or word of a result with its path: [("flops_7b low default", "0.8781"), ...]."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{name} {key}".strip())]
    if isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        return [leaf for n, inner in enumerate(value) for leaf in leaves(inner, f"{name} {n}".strip())]
    return [(name, shown(value))]


def shown(value: object) -> str:
    """A cell."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_table(value: Any) -> bool:
    """Whether a value is rows of the same columns by name: {"ours": {"dp": .01, "f1": 1.0}, ...}."""
    if not isinstance(value, dict) or len(value) < 2:
        return False
    rows = list(value.values())
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows) and not any(
        isinstance(cell, dict) for row in rows for cell in row.values()
    )


def table(name: str, columns: Sequence[str], rows: Mapping[str, Sequence[object]]) -> str:
    """A table under its name."""
    lines = [f"## {name}", "", f"| | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(map(shown, cells))} |" for row, cells in rows.items()]
    return "\n".join(lines)


def figures_of(value: Any, name: str = "") -> tuple[list[tuple[str, str]], list[str]]:
    """Every number or word of a result: those without a sibling as `leaves`, the others in tables.

    Rows of the same columns are a table of their own. What is said by name of several things alike
    ({"rendered": {...}, "real": {...}}) is a table with a column for each.
    """
    if not isinstance(value, dict):
        return leaves(value, name), []
    if is_table(value) and len(value) >= len(next(iter(value.values()))):
        columns = list(next(iter(value.values())))
        return [], [table(name, columns, {row: list(cells.values()) for row, cells in value.items()})]
    parts = {key: figures_of(inner, f"{name} {key}".strip()) for key, inner in value.items()}
    below = [one for _, inner in parts.values() for one in inner]
    if alike(value):
        columns = [
            {path.removeprefix(f"{name} {key} ".lstrip()): cell for path, cell in found}
            for key, (found, _) in parts.items()
        ]
        paths = dict.fromkeys(path for column in columns for path in column)
        rows = {path: [column.get(path, "") for column in columns] for path in paths}
        if not rows:  # all that is said of them are tables of their own
            return [], below
        return [], [table(name or "figures", list(parts), rows), *below]
    return [leaf for found, _ in parts.values() for leaf in found], below


def alike(value: dict[str, Any]) -> bool:
    """Whether a value says the same of several things: dictionaries whose table would be filled by more than
    half."""
    inner = list(value.values())
    if len(inner) < 2 or not all(isinstance(one, dict) for one in inner):
        return False
    return 2 * sum(map(len, inner)) > len(inner) * len(set().union(*inner))


def tables(value: Any, name: str = "") -> list[str]:
    """The tables within a value, each under its path."""
    if is_table(value):
        columns = list(next(iter(value.values())))
        return [table(name, columns, {row: list(cells.values()) for row, cells in value.items()})]
    if not isinstance(value, dict):
        return []
    return [table for key, inner in value.items() for table in tables(inner, f"{name}, {key}".strip(", "))]


def title(name: str) -> str:
    """What a page is called."""
    return TITLES.get(name, name.replace("_", " ").replace("-", ", "))


def origin(record: Record) -> str:
    """Where a result was taken, in one line."""
    beside = "" if record.busy < 0.5 else f"; {record.busy:g} busy processes per core at the start of the run"
    trees = f" (libs and services: {record.trees})" if record.trees else ""
    state = f"commit {commit_text(record)}{trees}"
    gone = "" if runs(record.command) else "; the bench has since been removed, but is in that commit"
    earlier = "" if record.weights == bundled() else "; the bundled model has had other weights since"
    return f"`{record.command}` on {record.device}, {state}, {record.date}{beside}{gone}{earlier}"


def runs(command: str) -> bool:
    """Whether the bench of a command is still here."""
    name = re.search(r"(?:-m bench\.|make bench-)(\w+)", command)
    places = (f"{name[1]}.py", f"{name[1]}/__main__.py") if name else ()
    return name is None or any((ROOT / "bench" / place).exists() for place in places)


def commit_text(record: Record) -> str:
    """The commit of a result; where a rebase lost it, the commit that brought the result into the history."""
    return f"{record.landed} (ran as {record.commit} before a rebase)" if record.landed else record.commit


def losses(record: Record) -> str:
    """What is better than ours at equal tokens, as a list for the top of the page."""
    lines = ["Methods that are better than ours with the same number of tokens:", ""]
    for kind, footings in record.figures["tables"].items():
        rows = dict(footings["equal"])
        ours = rows.pop("ours")
        rows = {name: row for name, row in rows.items() if not name.startswith("ours")}
        # What computes every token is the measure of |dp|, not a rival in it.
        nearer = [name for name, row in rows.items() if 0 < row["dp"] < ours["dp"]]
        faster = [name for name, row in rows.items() if row["time_over_ours"] < 1]
        names = [", ".join(better) or "none" for better in (nearer, faster)]
        lines.append(f"- {kind}: smaller |dp|: {names[0]}; faster: {names[1]}")
    return "\n".join(lines) + "\n\n"


def policy_losses(record: Record) -> str:
    """Policies that see more than the default does, or are nearer to whole windows at no more FLOPs."""
    rows = dict(record.figures["tables"]["policies"])
    ours = rows.pop("default")

    def cost(row: dict[str, Any]) -> str:
        tower = row.get("tower's FLOPs")
        return f"{row['FLOPs of full']:.0%} of the FLOPs" + ("" if tower is None else f", tower {tower:.0%}")

    lines = [
        "Policies that are better than the default. FLOPs are shares of dense windows: of the language "
        f"model (without questions), then of the vision tower. The default needs {cost(ours)}.",
        "",
    ]
    families = {"product": "F1 of simple questions", "contextual": "F1 of contextual questions"}
    for score in ("video F1", "event F1", "window F1", *families):
        better = [
            f"{name} ({row[score]} at {cost(row)})"
            for name, row in rows.items()
            if (row[score] or 0) > (ours[score] or 0)
        ]
        named = families.get(score, score)
        lines.append(f"- {named} (default {ours[score]}): {', '.join(better) or 'none'}")
    cheaper = [
        f"{name} ({row['dp']})"
        for name, row in rows.items()
        if 0 < row["dp"] < ours["dp"] and row["FLOPs of full"] <= ours["FLOPs of full"]
    ]
    lines.append(f"- smaller |dp| (default {ours['dp']}) at no more FLOPs: {', '.join(cheaper) or 'none'}")
    return "\n".join(lines) + "\n\n"


LOSSES = {"peers_engine": losses, "codecsight": policy_losses, "codecsight-16": policy_losses}
"""What the top of a page says before anything else."""


def page(name: str, record: Record, records: Mapping[str, Record] | None = None) -> str:
    """The page of one result; what stands beside the paper may come from other `records`."""
    below = record.figures.get("tables", {})
    figures = {key: value for key, value in record.figures.items() if key not in {"tables", BY_CAMERA}}
    alone, grouped = figures_of(figures)
    rows = "\n".join(f"| {path} | {value} |" for path, value in alone)
    pictures = "".join(f"![{picture}]({picture})\n\n" for picture in plots(name, record))
    beside = BESIDE[name]({**(records or {}), name: record}, name) if name in BESIDE else {}
    parts = [
        *([f"{pictures}| figure | value |\n| --- | --- |\n{rows}"] if rows else [pictures.strip()]),
        *tables({"beside the paper": beside} if beside else {}),
        *grouped,
        *tables(below),
    ]
    text = "\n\n".join(part for part in parts if part)
    lost = LOSSES[name](record) if name in LOSSES else ""
    return f"# {title(name)}\n\n{origin(record)}.\n\n{lost}{text}\n"


def plots(name: str, record: Record) -> dict[str, str]:
    """The plots of a result's page, SVG by file."""
    return PLOTS[name](record) if name in PLOTS else {}


def peer_plots(record: Record) -> dict[str, str]:
    """Time and |dp| of every peer."""
    tables = {kind: footings["equal"] for kind, footings in record.figures["tables"].items()}
    methods = list(dict.fromkeys(method for rows in tables.values() for method in rows))

    def chart(title: str, value: str, mark: float | None = None) -> str:
        groups = [
            Bars(method, {kind: rows[method][value] for kind, rows in tables.items() if method in rows})
            for method in methods
        ]
        return bar_chart(title, groups, mark=mark)

    return {
        "peers_engine-time.svg": chart("Time of a window over ours, at equal tokens", "time_over_ours", 1.0),
        "peers_engine-dp.svg": chart("Difference of p(yes) from dense windows, at equal tokens", "dp"),
    }


def memory_plots(record: Record) -> dict[str, str]:
    """Coverage of attention, frames that are activated together, bytes on the device by length."""
    tables = record.figures["tables"]
    out = {}
    if coverage := tables.get("coverage"):
        points = [(100 * float(share), row["attention"]) for share, row in coverage.items()]
        even = [(x, x / 100) for x, _ in points]
        lines = [Lines("heaviest tokens", points), Lines("any tokens", even)]
        out["memory-coverage.svg"] = line_chart(
            "Attention on the heaviest tokens of an hour", "% of the tokens", "share of the attention", lines
        )
    if together := tables.get("activated together"):
        rows = [list(row.values()) for row in together.values()]
        title = "Overlap of the 64 heaviest frames, by wording"
        out["memory-together.svg"] = heat_map(title, list(together), rows)
    if by_minutes := tables.get("bytes by minutes"):
        kinds = next(iter(by_minutes.values()))
        lines = [
            Lines(kind, [(int(m), row[kind] / 2**20) for m, row in by_minutes.items()]) for kind in kinds
        ]
        title = "On the device, six layers as wide as a 7B's, by length of history"
        out["memory-bytes.svg"] = line_chart(title, "minutes of history", "MiB", lines)
    return out


def recordings_plots(record: Record) -> dict[str, str]:
    """Known answers that are right by share kept, for every score."""
    out = {}
    for length, cells in record.figures["tables"].items():
        found: dict[str, list[tuple[float, float]]] = {}
        for name, row in cells.items():
            if name.startswith("rho ") and length != "20 frames":
                rho, score = name.removeprefix("rho ").split(", ")
                found.setdefault(score, []).append((float(rho), row["right"]))
        if found:
            lines = [Lines(score, points) for score, points in found.items()]
            out[f"recordings-{length.split()[0]}.svg"] = line_chart(
                f"Known answers that are right, {length}", "share kept (rho)", "right", lines
            )
    return out


PLOTS = {
    "memory": memory_plots,
    "peers_engine": peer_plots,
    "recordings": recordings_plots,
    "recordings-long": recordings_plots,
}
"""What is drawn on a result's page."""


def index(records: dict[str, Record]) -> str:
    """The page of all results."""
    lines = [
        "# Results",
        "",
        "This page lists all results. A bench printed each figure, and `python -m bench.record NAME` "
        "committed it with device, commit and date. `make results` writes these pages from the committed "
        "files. To run a bench that has since been removed, check out the commit of its result. "
        "[The page about the papers](../papers.md) says which of their figures are repeated.",
        "",
        "| result | command | device | commit | date |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| [{title(name)}]({name}.md) | `{it.command}` | {it.device} | {commit_text(it)} | {it.date} |"
        for name, it in records.items()
    ]
    return "\n".join(lines) + "\n"


def headlines(records: dict[str, Record]) -> str:
    """The README's table."""
    rows = ["| what | figure | compared with | measured on | read |", "| --- | --- | --- | --- | --- |"]
    for line in HEADLINES:
        record = records[line.result]
        compared = line.compared if isinstance(line.compared, str) else line.compared(record.figures)
        rows.append(
            f"| {line.what} | **{line.value(record.figures)}** | {compared} "
            f"| {record.device} ([result](docs/results/{line.result}.md)) "
            f"| [{line.page}](docs/{line.page}.md) |"
        )
    return "\n".join(rows)


def readme(text: str, records: dict[str, Record]) -> str:
    """The README with its table of figures made again."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{headlines(records)}\n{END}{after}"


def written(template: str, records: Mapping[str, Record]) -> str:
    """A page whose numbers are read from results.

    `{{worth rivals/even 16/product .2}}` is the value at that path of the result `worth`, within its tables
    or at its top. `.2` rounds to two digits and drops the zero before the point, `0` rounds to a whole
    number, `%1` gives a percentage with one digit. The ends of an interval are joined by "to".

    Raises:
        KeyError: A result has nothing at that path.
    """

    def figure(found: re.Match[str]) -> str:
        value: Any = records[found["result"]].figures
        first, *rest = found["path"].split("/")
        value = value["tables"][first] if first in value.get("tables", {}) else value[first]
        for step in rest:
            value = value[step]
        numbers = value if isinstance(value, list) else [value]
        return " to ".join(_rounded(number, found["form"]) for number in numbers)

    return re.sub(r"\{\{(?P<result>\S+) (?P<path>[^{}]+) (?P<form>[.%]?\d)\}\}", figure, template)


def marked(text: str, records: Mapping[str, Record]) -> str:
    """A page whose numbers after marks are read from results again: `<!-- worth flops/default %0 -->13`."""
    return re.sub(
        r"(<!-- (?P<figure>\S+ [^{}<>]+ [.%]?\d) -->)−?\d*\.?\d+(?: to −?\d*\.?\d+)?",
        lambda found: found[1] + written(f"{{{{{found['figure']}}}}}", records),
        text,
    )


def _rounded(number: float, form: str) -> str:
    places = Decimal(1).scaleb(-int(form[-1]))
    scale = 100 if form.startswith("%") else 1
    text = str((Decimal(str(number)) * scale).quantize(places, ROUND_HALF_UP)).replace("-", "−")
    return re.sub(r"^(−?)0\.", r"\1.", text) if form.startswith(".") else text


def pages() -> dict[Path, str]:
    """What every generated file holds."""
    records = results()
    files = {DOCS / f"{name}.md": page(name, record, records) for name, record in records.items()}
    files |= {
        DOCS / file: text for name, record in records.items() for file, text in plots(name, record).items()
    }
    files[DOCS / "index.md"] = index(records)
    files[PAPERS] = written(TEMPLATE.read_text(), records)
    front = ROOT / "README.md"
    files[front] = readme(front.read_text(), records)
    for guide in set((ROOT / "docs").glob("*.md")) - set(files):
        if "<!-- " in (text := guide.read_text()):
            files[guide] = marked(text, records)
    files[TINY / QUESTIONS_FILE] = question_list(records)
    return files


def question_list(records: Mapping[str, Record]) -> str:
    """The questions of the model that comes along, with its F1 in windows as the product computes them, and
    for those that single strides answer as well, what these cost in the language model as a share of
    windows."""
    rendered = records["sight-20"].figures["pruned"]
    # Clips that were not looked at when weights were chosen, where there are such.
    real = records["sight-20"].figures["real"] | {"lying": unseen_falls(records["sight-falls"])}
    worth = records["worth"].figures
    cost = round(worth["rivals"]["strides"]["flops"] / worth["rivals"]["default"]["flops"], 2)
    as_good = strides_as_good(worth["tables"]["families"], records["far"].figures["tables"])
    entries = []
    for question in QUESTIONS:
        if not rendered[question.name]:  # not learned: a watch on it is rejected like any other question
            continue
        f1 = {"rendered": rendered[question.name], "real": real.get(question.name)}
        known = {kind: value for kind, value in f1.items() if value is not None}
        entry = {"name": question.name, "wordings": list(question.wordings), "f1": known}
        entries.append(entry | ({"strides": cost} if question.family in as_good else {}))
    source = {"source": "docs/results/sight-20.md", "source_strides": "docs/results/worth.md"}
    return json.dumps({**source, "questions": entries}, indent=1) + "\n"


def unseen_falls(record: Record) -> float:
    """F1 of the bundled model per clip, in the result `sight-falls`."""
    told = record.figures["tolerant"]
    found, falls, false = (
        told["falls"]["answered yes"],
        told["falls"]["clips"],
        told["no falls"]["answered yes"],
    )
    return round(2 * found / (found + falls + false), 3)


def strides_as_good(worth: Mapping[str, Any], far: Mapping[str, Any]) -> set[str]:
    """Families of questions that single strides answer as well as windows.

    By the rule of `lookout model check --calibrate`: the whole 95 % interval of the difference in F1 is above
    the margin. A family has to be answered at all, and films that only windows can answer exclude it.

    Args:
        worth: The table `families` of the result `worth`.
        far: The tables of the result `far`.
    """
    less_strides = {kind: less["strides, max"] for kind, less in far["default less others"].items()}
    # Kinds of films have the names of question families, apart from `thrice`, whose question counts.
    lost = {"count" if kind == "thrice" else kind for kind, less in less_strides.items() if less[0] > 0}
    return {
        family
        for family, row in worth.items()
        if row["strides"] and row["strides less default 95 %"][0] > -MARGINS[True] and family not in lost
    }


def main() -> int:
    """Write the pages."""
    files = pages()
    DOCS.mkdir(exist_ok=True)
    for path in [*DOCS.glob("*.md"), *DOCS.glob("*.svg")]:
        if path not in files:
            path.unlink()
    for path, text in files.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
