"""Zones: tells whether anything changed inside a polygon."""

from __future__ import annotations

from collections.abc import Sequence

from lookout.rules.types import Activity, RuleError, Zone


def inside_any(zones: Sequence[Zone], activity: Activity | None) -> bool:
    """Whether the centre of a changed cell is in one of the zones. Unknown activity counts as inside."""
    if activity is None:
        return True
    centres = [
        ((cell % activity.cols + 0.5) / activity.cols, (cell // activity.cols + 0.5) / activity.rows)
        for cell in activity.cells
    ]
    return any(contains(zone, x, y) for zone in zones for x, y in centres)


def contains(zone: Zone, x: float, y: float) -> bool:
    """Whether a zone contains a point, by the even-odd rule: a ray to the right crosses the border an odd
    number of times."""
    inside = False
    for (x1, y1), (x2, y2) in zip(zone.points, zone.points[1:] + zone.points[:1], strict=True):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside


def parse_points(text: str) -> list[tuple[float, float]]:
    """Parse the corners of a polygon such as '0.1,0.2 0.4,0.2 0.4,0.9': x and y, each from 0 to 1.

    Raises:
        RuleError: The text is not a valid polygon.
    """
    try:
        points = [(float(x), float(y)) for x, y in (point.split(",") for point in text.split())]
    except ValueError:
        raise RuleError("write the corners as '0.1,0.2 0.4,0.2 0.4,0.9'") from None
    if len(points) < 3 or not all(0 <= value <= 1 for point in points for value in point):
        raise RuleError("give at least three corners, with x and y between 0 and 1")
    return points
