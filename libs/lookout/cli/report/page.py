"""Turns a run into the page's data: each camera's time axis, costs and chosen key frames."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

from lookout.cli.formats import count_text, minutes_text
from lookout.cli.report.pictures import Pictures, data_uri
from lookout.cli.report.run import CameraRun, EvidenceFrame, FleetRecord, Point, ReportedIncident
from lookout.disk import replace_file
from lookout.text import visible
from lookout.v1.labels_pb2 import Label
from lookout.v1.verdicts_pb2 import Verdict

Span = tuple[float, float]

SHOTS = 14
_INCIDENTS_SHOWN = 8  # incidents shown per camera; further ones are folded
_CAMERAS_SHOWN = 24  # cameras with incidents shown; further ones are folded
_INCIDENT_SHOTS = 8
_LETTERS = 100  # limit per camera, so that a flooded topic does not fill the page
_NEAR_US = 1_500_000
_OUTCOMES: dict[int, str] = {
    Verdict.OUTCOME_GAP: "gap",
    Verdict.OUTCOME_SKIPPED: "skipped",
    Verdict.OUTCOME_DEGRADED: "degraded",
    Verdict.OUTCOME_GATED: "gated",
}

_ENDINGS = {
    "gap": "stream ended",
    "schedule": "out of schedule",
    "new-version": "watch changed",
    "removed": "watch removed",
}


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a rendered camera: spans of stream time (seconds) by watch."""

    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageFacts:
    """Facts for the page in addition to the run."""

    title: str
    command: str
    facts: Mapping[str, str] = field(default_factory=dict)
    notices: Sequence[str] = ()
    truth: Mapping[str, Truth] = field(default_factory=dict)  # by camera
    lead: str = ""  # replaces the sentence that counts cameras and questions
    tiles: Mapping[str, str] = field(default_factory=dict)  # figures by label, shown after the incidents


def write_page(path: Path, run: FleetRecord, album: Pictures | None, facts: PageFacts) -> Path:
    """Write the page as a single file and return its path."""
    text = render(page_data(run, album, facts), facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    return path


def render(data: Mapping[str, Any], facts: PageFacts) -> str:
    """Return the page's HTML, which loads nothing from outside."""
    folder = files("lookout.cli.report")
    data = _visible(data)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(percent=percent, clock=minutes_text, count=count, things=count_text)
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    # "<" is escaped, because inside a script element it could end the element or begin a comment.
    payload = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return template.render(
        page=data,
        places={camera["id"]: place for place, camera in enumerate(data["cameras"])},
        first=_INCIDENTS_SHOWN,
        groups=list(data["incidents"].items()),
        first_groups=_CAMERAS_SHOWN,
        facts=facts,
        payload=payload,
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
    )


def _visible(value: Any) -> Any:
    """Replace control characters and direction marks in the page's texts by visible escapes."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {_visible(key): _visible(inner) for key, inner in value.items()}
    return [_visible(inner) for inner in value] if isinstance(value, list | tuple) else value


def page_data(run: FleetRecord, album: Pictures | None, facts: PageFacts) -> dict[str, Any]:
    """Return the plain data for the template and the script. Times are seconds on each camera's axis."""
    watches = list(run.questions)
    cameras = [
        _camera(camera, run, watches, album, facts.truth.get(camera.id, Truth()))
        for camera in sorted(run.cameras.values(), key=lambda each: each.id)
    ]
    incidents = {camera["id"]: _incidents(camera) for camera in cameras}
    wrong = sum(one["opinion"] == "wrong" for group in incidents.values() for one in group)
    runs = run.cameras.values()
    windows = sum(camera.windows for camera in runs)
    return {
        "made": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        "watches": [{"id": watch, "question": run.questions[watch]} for watch in watches],
        "cameras": cameras,
        "has_truth": any(lane["has_truth"] for camera in cameras for lane in camera["lanes"]),
        "has_parts": any(camera.patches_total or camera.costs for camera in runs),
        "incidents": {camera: group for camera, group in incidents.items() if group},
        "wrong": wrong,
        "totals": {
            "seconds": sum(camera.seconds for camera in runs),
            "frames": sum(camera.decoded for camera in runs),
            "windows": windows,
            "answers": sum(
                point.outcome == Verdict.OUTCOME_ANSWERED
                for camera in runs
                for points in camera.points.values()
                for point in points
            ),
            **_totals(runs),
        },
    }


def _incidents(camera: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a camera's incidents in order of time, each with the key frame that shows it."""
    incidents = [
        {
            **incident,
            "camera": camera["id"],
            "untrained": lane["untrained"],
            "shot": _thumbnail(camera, incident),
            "gone": bool(incident["evidence"]) and incident["evidence"][0] in camera["gone"],
        }
        for lane in camera["lanes"]
        for incident in lane["incidents"]
    ]
    return sorted(incidents, key=lambda incident: (incident["a"], incident["question"]))


def _totals(cameras: Any) -> dict[str, float | None]:
    patches = [(camera.patches_encoded, camera.patches_total) for camera in cameras]
    tokens = [camera.tokens for camera in cameras]
    costs = [cost for camera in cameras for cost in camera.costs.values()]
    question_flops = sum(sum(camera.question_flops.values()) for camera in cameras)  # part of both sums
    spent = sum(cost.flops_vision + cost.flops_prefill for cost in costs)
    return {
        "patches_saved": _saved(sum(p[0] for p in patches), sum(p[1] for p in patches)),
        "tokens_saved": _saved(sum(t[0] for t in tokens), sum(t[1] for t in tokens)),
        "flops_saved": _saved(
            spent + question_flops, sum(cost.flops_dense for cost in costs) + question_flops
        ),
    }


def saved_patches(camera: CameraRun) -> float | None:
    """Return the share of the ViT patches that were never computed; None if the camera has no patches."""
    return _saved(camera.patches_encoded, camera.patches_total)


def saved_tokens(camera: CameraRun) -> float | None:
    """Return the share of the dense windows' visual tokens that were never computed; None if there are no
    tokens.
    """
    return _saved(*camera.tokens)


def _saved(spent: float, dense: float) -> float | None:
    return 1.0 - spent / dense if dense else None


class Axis:
    """Places a camera's stream epochs one after the other on one axis in seconds."""

    def __init__(self, camera: CameraRun) -> None:
        self.offsets: dict[int, float] = {}
        ends: dict[int, int] = dict(camera.epochs)
        for points in camera.points.values():
            for point in points:
                if point.outcome == Verdict.OUTCOME_ANSWERED:
                    ends[point.epoch] = max(ends.get(point.epoch, 0), point.end_us)
        self.length = 0.0
        for epoch in sorted(ends):
            self.offsets[epoch] = self.length
            self.length += ends[epoch] / 1e6

    def __call__(self, epoch: int, time_us: int) -> float:
        return round(min(self.offsets.get(epoch, 0.0) + time_us / 1e6, self.length), 3)


def _camera(
    camera: CameraRun, run: FleetRecord, watches: Sequence[str], album: Pictures | None, truth: Truth
) -> dict[str, Any]:
    axis = Axis(camera)
    stride = stride_us(camera)
    lanes = [
        {
            "watch": watch,
            "question": run.questions[watch],
            "color": watches.index(watch),
            "threshold": run.thresholds.get(watch, 0.5),
            "points": [_point(point, axis, stride) for point in _ordered(camera.points.get(watch, []))],
            "untrained": watch in run.untrained,
            "incidents": [
                _incident(i, camera, axis, run.labels.get(i.id))
                for i in camera.incidents.values()
                if i.watch == watch
            ],
            "truth": [list(span) for span in truth.spans.get(watch, ())],
            "has_truth": watch in truth.spans,
        }
        for watch in watches
        if watch in camera.points
    ]
    return {
        "id": camera.id,
        "codec": camera.codec,
        "seconds": round(camera.seconds, 2),
        "length": round(axis.length, 3),
        "breaks": [offset for offset in axis.offsets.values() if offset > 0],
        "frames": camera.decoded,
        "corrupt": camera.corrupt,
        "windows": camera.windows,
        "patches_saved": saved_patches(camera),
        "tokens_saved": saved_tokens(camera),
        "lanes": lanes,
        "costs": _costs(camera, axis, stride),
        **_shots(camera, axis, album, {name for name, label in run.labels.items() if not label.right}),
        "begin": camera.begin_ms,
        "dead": [dataclasses.asdict(letter) for letter in camera.dead[-_LETTERS:]],
        "more_dead": max(0, len(camera.dead) - _LETTERS),
    }


def _ordered(points: Sequence[Point]) -> list[Point]:
    return sorted(points, key=lambda point: (point.epoch, point.window))


def stride_us(camera: CameraRun) -> int:
    """Return a camera's stride in microseconds, which is the most common step between the ends of windows."""
    steps: dict[int, int] = {}
    for points in camera.points.values():
        ordered = _ordered(points)
        for first, second in pairwise(ordered):
            if first.epoch == second.epoch and (step := second.end_us - first.end_us) > 0:
                steps[step] = steps.get(step, 0) + 1
    return max(steps, key=lambda step: (steps[step], -step)) if steps else 2_000_000


def _point(point: Point, axis: Axis, stride: int) -> list[Any]:
    begin = max(point.start_us, point.end_us - stride)
    answered = point.outcome == Verdict.OUTCOME_ANSWERED
    return [
        axis(point.epoch, begin),
        axis(point.epoch, point.end_us),
        round(point.p_yes, 4) if answered else None,
        "" if answered else _OUTCOMES.get(point.outcome, "unknown"),
        point.reason,
        axis(point.epoch, point.start_us),
    ]


def _incident(
    incident: ReportedIncident, camera: CameraRun, axis: Axis, label: Label | None
) -> dict[str, Any]:
    end_us = camera.stream_us(incident.epoch, incident.end_wall_ms)
    if incident.closed is None:  # still open, so it lasts until the last decided time
        end_us = max(end_us, camera.decided_us.get(incident.epoch, 0))
    return {
        "id": incident.id,
        "watch": incident.watch,
        "when": "" if camera.begin_ms is None else _wall(incident.raised_wall_ms, incident.end_wall_ms),
        "question": incident.question,
        "a": axis(incident.epoch, camera.stream_us(incident.epoch, incident.raised_wall_ms)),
        "b": axis(incident.epoch, end_us),
        "peak": round(incident.peak, 4),
        "opinion": None if label is None else "right" if label.right else "wrong",
        "by": "" if label is None else label.labelled_by,
        "closed": _ENDINGS.get(incident.closed, incident.closed) if incident.closed else incident.closed,
        "evidence": [axis(incident.epoch, frame) for frame in incident.evidence],
    }


def _costs(camera: CameraRun, axis: Axis, stride: int) -> list[list[float]]:
    ends = {
        (point.epoch, point.window): (point.start_us, point.end_us)
        for points in camera.points.values()
        for point in points
    }
    bars = []
    for key in sorted(camera.costs):
        cost = camera.costs[key]
        if key in ends and cost.tokens_total:
            start, end = ends[key]
            bars.append(
                [
                    axis(key[0], max(start, end - stride)),
                    axis(key[0], end),
                    cost.tokens_kept,
                    cost.tokens_total,
                ]
            )
    return bars


def choose_shots(camera: CameraRun, wrong: Set[str] = frozenset()) -> list[tuple[EvidenceFrame, str | None]]:
    """Return key frames: first the evidence of incidents (incidents labelled `wrong` last), then frames
    spread over the time.

    Partly computed frames are preferred to anchors, which are computed completely and so show no pruning.
    """
    ordered = sorted(camera.shots, key=lambda shot: (shot.epoch, shot.time_us))
    if not ordered:
        return []
    captions: dict[EvidenceFrame, str | None] = {}
    best = sorted(camera.incidents.values(), key=lambda incident: (incident.id in wrong, -incident.peak))
    for incident in best[:_INCIDENT_SHOTS]:
        candidates = [shot for shot in ordered if shot.epoch == incident.epoch]
        if candidates and incident.evidence:
            target = incident.evidence[0]
            nearest = min(candidates, key=lambda shot: abs(shot.time_us - target))
            captions.setdefault(nearest, incident.question)
    captions.setdefault(ordered[0], None)
    room = max(0, SHOTS - len(captions))
    for step in range(room):
        middle = ordered[int((step + 0.5) * len(ordered) / room)]
        near = [
            shot
            for shot in ordered
            if shot.epoch == middle.epoch
            and abs(shot.time_us - middle.time_us) <= _NEAR_US
            and shot not in captions
        ]
        if near:
            captions[max(near, key=lambda shot: (not shot.anchor, int(shot.keep.sum())))] = None
    return sorted(captions.items(), key=lambda each: (each[0].epoch, each[0].time_us))


def _wall(begin_ms: int, end_ms: int) -> str:
    """Format a span of wall-clock time in UTC."""
    begin, end = (datetime.fromtimestamp(moment / 1000, UTC) for moment in (begin_ms, end_ms))
    return f"{begin:%Y-%m-%d %H:%M:%S} – {end:%H:%M:%S} UTC"


def _shots(camera: CameraRun, axis: Axis, album: Pictures | None, wrong: Set[str]) -> dict[str, Any]:
    """Return the key frames (`shots`) and the times of unavailable key frames (`gone`)."""
    captions = choose_shots(camera, wrong)
    shots = [shot for shot, _ in captions]
    filmed = album.filmed(camera, shots) if album else {}
    inputs = album.seen(camera, shots) if album else {}
    shown = [
        {
            "t": axis(shot.epoch, shot.time_us),
            "anchor": shot.anchor,
            "rows": shot.keep.shape[0],
            "cols": shot.keep.shape[1],
            "keep": "".join("1" if bit else "0" for bit in shot.keep.ravel()),
            "kept": int(shot.keep.sum()),
            "incident": incident,
            "filmed": data_uri(filmed[shot]) if shot in filmed else None,
            "seen": data_uri(inputs[shot], quality=88) if shot in inputs else None,
            "aspect": round(filmed[shot].shape[1] / filmed[shot].shape[0], 4) if shot in filmed else 1.0,
        }
        for shot, incident in captions
        if shot in filmed or shot in inputs
    ]
    gone = [shot for shot in shots if shot not in filmed and shot not in inputs] if album else []
    return {"shots": shown, "gone": [axis(shot.epoch, shot.time_us) for shot in gone]}


def _thumbnail(camera: Mapping[str, Any], incident: Mapping[str, Any]) -> int | None:
    """Return the index of the key frame nearest to an incident's best evidence; None if no key frame shows
    it.
    """
    shots, evidence = camera["shots"], incident["evidence"]
    target = evidence[0] if evidence else incident["b"]
    begin, end = min([incident["a"], *evidence]), max([incident["b"], *evidence])
    near_s = _NEAR_US / 1e6
    inside = [index for index, shot in enumerate(shots) if begin - near_s <= shot["t"] <= end + near_s]
    return min(inside, key=lambda index: abs(shots[index]["t"] - target), default=None)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def count(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")
