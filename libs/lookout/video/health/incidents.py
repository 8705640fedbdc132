"""Follows a camera's health from segment to segment: how long faults last, and the one incident that they
form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from lookout.video.health.faults import (
    LEARNED,
    CameraFault,
    Levels,
    Observation,
    Thresholds,
    is_blank,
    picture_fault,
    stream_faults,
)
from lookout.video.health.looks import F32, U8
from lookout.video.health.loops import NUMBERS, REMEMBERED, repeats, signatures
from lookout.video.health.usual import Match, Usual

CAUSES: Final = tuple(CameraFault)
#: seconds after which a known camera's view is compared again; not sooner, because a comparison costs more
#: than sampling
_JUDGED_S: Final = 8.0
#: seconds for which a fault must last before it is reported; the times of the causes in one row are added
_HOLD: Final[tuple[tuple[frozenset[CameraFault], float], ...]] = (
    (frozenset({CameraFault.DAMAGED}), 20.0),
    (frozenset({CameraFault.DARK, CameraFault.COVERED, CameraFault.BLURRED, CameraFault.MOVED}), 30.0),
    (frozenset({CameraFault.FROZEN}), 0.0),
    (frozenset({CameraFault.LOOPED}), 60.0),
    (frozenset({CameraFault.RATE}), 60.0),
    (frozenset({CameraFault.CLOCK}), 10.0),
)
#: maximum number of seconds counted of a fault, so that the count soon falls if another fault follows
_MAX_FAULT_S: Final = 90.0
#: seconds without a fault after which an incident closes
_CLEAR_S: Final = 15.0
#: seconds of black without any structure after which the lens is covered
_COVERED_S: Final = 600.0
#: seconds after which a turned camera's new view becomes its usual one
_ADOPTED_S: Final = 6 * 3600.0
#: seconds of equal pictures after which the picture is frozen; at least three times the longest ordinary
#: stillness
_FROZEN_S: Final = 20.0
#: number of segments, each beginning with a keyframe, over which pictures must be equal. Several are needed,
#: because within one segment the pictures of any still scene are equal
_FROZEN_KEYS: Final = 2
#: seconds for which the picture must change less than by ordinary noise, and the share of the usual change
#: below which it does
_QUIET_S: Final = 40.0
_QUIET_SHARE: Final = 0.25
#: usual change, in grey levels, below which a camera has no measurable noise
_NOISE: Final = 0.04
#: seconds of stream after which the usual frame rate and bit rate are known
_RATED_S: Final = 300.0
#: shares of the usual frame rate and of the lowest usual bit rate, below which the rate is a fault
_FPS_SHARE, _BYTES_SHARE = 0.4, 0.15
#: jumps of the clock that are tolerated; a jump is forgotten after two minutes
_JUMPS: Final = 5.0
_JUMP_S: Final = 120.0
#: seconds of stream after which silence is an outage
_LIVE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class CameraIncident:
    """An open incident.

    Attributes:
        id: Identifier, the same from opening to closing.
        cause: The fault that the incident reports.
        opened_ms: When the fault began, Unix milliseconds.
        segments: Segments that showed a fault.
        tenant: Tenant that owned the camera when the incident opened.
    """

    id: str
    cause: CameraFault
    opened_ms: int
    segments: int
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """A change of an incident.

    Attributes:
        kind: The change.
        incident: The incident after the change.
        at_ms: When the change happened, Unix milliseconds.
        reason: Why the incident closed; empty: it did not close.
    """

    kind: Literal["opened", "updated", "closed"]
    incident: CameraIncident
    at_ms: int
    reason: str = ""


def _no_history() -> U8:
    return np.zeros((0, NUMBERS), np.uint8)


@dataclass(frozen=True, slots=True)
class CameraHealth:
    """The health state of one camera.

    Attributes:
        usual: What the camera usually shows.
        levels: How far the camera's ordinary segments deviate from `usual`.
        seen_s: Seconds of stream so far.
        checksum: Checksum of the newest sample; None before the first.
        same_s: Seconds for which the newest samples have been equal.
        same_keys: Number of segments that began within `same_s`.
        still_s: Longest time for which samples were equal without a fault.
        quiet_s: Seconds in which the picture changed less than the camera's noise makes it change.
        history: uint8 [n, NUMBERS]: signatures of the newest samples.
        fps: Usual pictures a second.
        rate: Lowest usual bytes a second.
        jumps: Recent jumps of the clock; the count decays with time.
        fault_s: Seconds for which each of `CAUSES` has lasted.
        clear_s: Seconds without a fault.
        blank_s: Seconds without any structure in the picture.
        unjudged_s: Seconds since the view was last compared with what the camera usually shows.
        view: The fault found in that comparison.
        incident: The open incident.
    """

    usual: Usual = field(default_factory=Usual)
    levels: Levels = field(default_factory=Levels)
    seen_s: float = 0.0
    checksum: int | None = None
    same_s: float = 0.0
    same_keys: int = 0
    still_s: float = 0.0
    quiet_s: float = 0.0
    history: U8 = field(default_factory=_no_history)
    fps: float = 0.0
    rate: float = 0.0
    jumps: float = 0.0
    fault_s: tuple[float, ...] = (0.0,) * len(CAUSES)
    clear_s: float = 0.0
    blank_s: float = 0.0
    unjudged_s: float = 0.0
    view: CameraFault | None = None
    incident: CameraIncident | None = None

    @property
    def live(self) -> bool:
        """Whether the camera has streamed for long enough that its silence counts as an outage."""
        return self.seen_s >= _LIVE_S


def observe(
    health: CameraHealth, observation: Observation, thresholds: Thresholds = LEARNED
) -> tuple[CameraHealth, set[CameraFault]]:
    """Return a camera's health updated with one segment, and the segment's faults.

    Args:
        health: The camera's health before the segment.
        observation: The segment.
        thresholds: Fixed thresholds, or thresholds learned from the camera.

    Returns:
        The camera's health after the segment, and the faults that the segment shows. Only segments without
        faults change what the camera usually shows.
    """
    faults = stream_faults(observation)
    before = health
    jumps = max(0.0, health.jumps - observation.seconds / _JUMP_S) + observation.jumped
    if jumps > _JUMPS:
        faults.add(CameraFault.CLOCK)
    if observation.refused or not observation.planes.checksums:
        return replace(health, seen_s=health.seen_s + observation.seconds, jumps=jumps), faults
    health, change, frozen = _stillness(health, observation, jumps)
    judged = health.unjudged_s >= _JUDGED_S or not health.usual.known(health.usual.of_day)
    usual, levels, blank_s, view = health.usual, health.levels, health.blank_s, health.view
    luma = detail = nearest = None
    if judged:
        luma, detail = observation.planes.middle()
        view, blank_s, nearest = _judged(health, luma, detail, thresholds)
        if view is CameraFault.MOVED and _settled(health, observation.at_ms):
            usual, view, nearest = usual.adopted(luma, detail), None, None
    if view is not None and not (frozen and view is CameraFault.LOOPED):
        faults.add(view)  # a covered lens also gives a still picture; it is reported instead
    elif frozen:
        faults.add(CameraFault.FROZEN)
    if _slow(before, observation):
        faults.add(CameraFault.RATE)
    if luma is not None and detail is not None and not faults:
        usual = usual.learned(luma, detail, health.unjudged_s, change, nearest)
        levels = levels if nearest is None else levels.learned(nearest[1])
    fps, rate = (health.fps, health.rate) if faults else _rated(health, observation)
    health = replace(
        health,
        usual=usual,
        levels=levels,
        fps=fps,
        rate=rate,
        unjudged_s=0.0 if judged else health.unjudged_s,
        blank_s=blank_s,
        view=view,
    )
    return health, faults


def _judged(
    health: CameraHealth, luma: F32, detail: F32, thresholds: Thresholds
) -> tuple[CameraFault | None, float, tuple[int, Match] | None]:
    """Return the view's fault (None: no fault), the seconds for which the picture has had no structure, and
    the reference picture most like the view (None: there is none).
    """
    fault, nearest = picture_fault(luma, detail, health.usual, thresholds.of(health.levels))
    blank_s = health.blank_s + health.unjudged_s if fault is not None and is_blank(luma) else 0.0
    if fault is CameraFault.DARK and blank_s >= _COVERED_S:
        fault = CameraFault.COVERED
    if fault is None and repeats(health.history):
        fault = CameraFault.LOOPED
    return fault, blank_s, nearest


def unlearned(health: CameraHealth) -> CameraHealth:
    """Return the health without what the pictures usually show, because they were changed, for example by a
    privacy mask.
    """
    return replace(
        health,
        usual=Usual(),
        levels=Levels(),
        checksum=None,
        same_s=0.0,
        same_keys=0,
        still_s=0.0,
        quiet_s=0.0,
        history=_no_history(),
        blank_s=0.0,
        unjudged_s=0.0,
        view=None,
    )


def _settled(health: CameraHealth, at_ms: int) -> bool:
    """Whether a camera has shown a moved view for so long that somebody must have moved it on purpose."""
    incident = health.incident
    moved = incident is not None and incident.cause is CameraFault.MOVED
    return moved and incident is not None and at_ms - incident.opened_ms >= 1000 * _ADOPTED_S


def _stillness(
    health: CameraHealth, observation: Observation, jumps: float
) -> tuple[CameraHealth, float | None, bool]:
    """Return the camera's health, the change between samples (None: fewer than two), and whether the picture
    is frozen.

    The camera's time and its clock jumps are also updated here, because every copy of a `CameraHealth` costs
    time.
    """
    begun = health.usual.at(observation.hour)
    history = np.concatenate([health.history, signatures(observation.planes.luma)])[-REMEMBERED:]
    step = observation.seconds / len(observation.planes.checksums)
    checksum, same_s, same_keys, still_s = health.checksum, health.same_s, health.same_keys, health.still_s
    for place, new in enumerate(observation.planes.checksums):
        if new == checksum:
            same_s, same_keys = same_s + step, same_keys + (place == 0)
            continue
        if same_s < _limit(still_s) and same_keys >= _FROZEN_KEYS:
            still_s = max(still_s, same_s)  # not a fault: the camera may be still for this long
        checksum, same_s, same_keys = new, 0.0, 0
    change, usual = observation.planes.change, begun.change(begun.of_day)
    quiet_s = health.quiet_s
    if change is not None and usual is not None and usual >= _NOISE:
        quiet = change < _QUIET_SHARE * usual
        quiet_s = max(0.0, quiet_s + (observation.seconds if quiet else -2 * observation.seconds))
        quiet_s = min(quiet_s, 2 * _QUIET_S)
    health = replace(
        health,
        seen_s=health.seen_s + observation.seconds,
        jumps=jumps,
        usual=begun,
        history=history,
        checksum=checksum,
        same_s=same_s,
        same_keys=same_keys,
        still_s=still_s,
        quiet_s=quiet_s,
        unjudged_s=health.unjudged_s + observation.seconds,
    )
    frozen = (same_s >= _limit(still_s) and same_keys >= _FROZEN_KEYS) or quiet_s >= _QUIET_S
    return health, change if quiet_s == 0 else None, frozen


def _limit(still_s: float) -> float:
    return max(_FROZEN_S, 3 * still_s)


def _slow(health: CameraHealth, observation: Observation) -> bool:
    if health.seen_s < _RATED_S or observation.seconds < 0.5:
        return False
    fps, rate = observation.frames / observation.seconds, observation.size / observation.seconds
    return fps < _FPS_SHARE * health.fps or rate < _BYTES_SHARE * health.rate


def _rated(health: CameraHealth, observation: Observation) -> tuple[float, float]:
    """Return the usual pictures and the lowest usual bytes per second, updated with an ordinary segment."""
    if observation.seconds < 0.5:
        return health.fps, health.rate
    fps, rate = observation.frames / observation.seconds, observation.size / observation.seconds
    if not health.fps:
        return fps, rate
    slowly = 0.05 if rate < health.rate else 0.002
    return health.fps + 0.02 * (fps - health.fps), health.rate + slowly * (rate - health.rate)


def advance(
    health: CameraHealth,
    faults: Iterable[CameraFault],
    end_ms: int,
    seconds: float,
    *,
    identity: str = "",
    tenant: str = "",
) -> tuple[CameraHealth, list[HealthEvent]]:
    """Open, update or close the incident after a stretch of time with these faults; return the new health and
    the events.

    Args:
        health: The camera.
        faults: Faults that the stretch shows.
        end_ms: Its end, Unix milliseconds.
        seconds: Its length.
        identity: Identifier for an incident that opens.
        tenant: Tenant that owns the camera.
    """
    present = frozenset(faults)
    if CameraFault.OFFLINE in present:
        health = replace(health, unjudged_s=_JUDGED_S)  # once the camera is back, its view is judged at once
    fault_s = health.fault_s
    if present or any(fault_s):
        fault_s = tuple(
            _lasting(cause, lasted_s, present, seconds)
            for cause, lasted_s in zip(CAUSES, fault_s, strict=True)
        )
    clear_s = 0.0 if present else min(_CLEAR_S, health.clear_s + seconds)
    if (fault_s, clear_s) != (health.fault_s, health.clear_s):
        health = replace(health, fault_s=fault_s, clear_s=clear_s)
    root = _root(health) if any(fault_s) else None
    incident = health.incident
    if incident is None and (root is None or root not in present):
        return health, []
    if incident is None:
        assert root is not None
        # Without this, a fault could seem to begin after its end if the clock was set back.
        began_ms = max(0, min(end_ms, end_ms - round(1000 * health.fault_s[CAUSES.index(root)])))
        incident = CameraIncident(identity, root, began_ms, 1, tenant)
        return replace(health, incident=incident), [HealthEvent("opened", incident, end_ms)]
    incident = replace(incident, opened_ms=min(incident.opened_ms, end_ms))
    if present:
        incident = replace(incident, segments=incident.segments + 1)
    health = replace(health, incident=incident)
    offline_over = incident.cause is CameraFault.OFFLINE and not present
    if offline_over or (not present and clear_s >= _CLEAR_S):
        return end(health, end_ms, "cleared")
    if root is None or root is incident.cause:
        return health, []
    outranked = CAUSES.index(root) < CAUSES.index(incident.cause)
    related = any({root, incident.cause} <= group for group, _ in _HOLD)
    if outranked or related or not health.fault_s[CAUSES.index(incident.cause)]:
        incident = replace(incident, cause=root)
        return replace(health, incident=incident), [HealthEvent("updated", incident, end_ms)]
    return health, []


def end(health: CameraHealth, at_ms: int, reason: str) -> tuple[CameraHealth, list[HealthEvent]]:
    """Close the open incident, if there is one."""
    if health.incident is None:
        return health, []
    event = HealthEvent("closed", health.incident, max(at_ms, health.incident.opened_ms), reason)
    no_faults = (0.0,) * len(CAUSES)
    return replace(health, incident=None, fault_s=no_faults, clear_s=0.0), [event]


def _lasting(cause: CameraFault, lasted_s: float, present: frozenset[CameraFault], seconds: float) -> float:
    if cause in present:
        return min(lasted_s + seconds, _MAX_FAULT_S)
    if not lasted_s or cause is CameraFault.OFFLINE:
        return 0.0
    if any(cause in group and group & present for group, _ in _HOLD):
        return max(0.0, lasted_s - seconds / 2)  # the view alternates between causes of one group
    return max(0.0, lasted_s - 2 * seconds)


def _root(health: CameraHealth) -> CameraFault | None:
    """Return the fault to report; None if there is none. An outage comes first; otherwise it is the
    longest-lasting cause of the first group in `_HOLD` that has lasted long enough.
    """
    seconds = dict(zip(CAUSES, health.fault_s, strict=True))
    if seconds[CameraFault.OFFLINE]:
        return CameraFault.OFFLINE
    for group, hold_s in _HOLD:
        if sum(seconds[cause] for cause in group) > 0 and sum(seconds[cause] for cause in group) >= hold_s:
            return max((cause for cause in CAUSES if cause in group), key=lambda cause: seconds[cause])
    return None
