"""Converts a search's region and events between protobuf messages and the data classes of `types`."""

from __future__ import annotations

from lookout.past.find.similar import RegionError
from lookout.past.find.types import FindEvent, Hit, Region
from lookout.rules.types import RuleError, Zone
from lookout.v1 import memory_pb2
from lookout.wire.ids import is_camera_id


def region_of(message: memory_pb2.PictureRegion) -> Region:
    """Return the region that a message describes.

    Raises:
        RegionError: The message does not describe a valid region.
    """
    if message.picture:
        if message.camera or message.time_us:
            raise RegionError("like: give a picture, or a camera and a time, not both")
    elif not is_camera_id(message.camera) or "*" in message.camera or message.time_us <= 0:
        raise RegionError("like: give the id of one camera, and the time of one of its pictures")
    points = tuple((point.x, point.y) for point in message.zone.points)
    if not all(0 <= value <= 1 for point in points for value in point):
        raise RegionError("like: the coordinates of the zone's points must be between 0 and 1")
    try:
        zone = Zone(points) if message.HasField("zone") else None
    except RuleError as error:
        raise RegionError(f"like: {error}") from None
    return Region(message.camera, message.time_us, zone, message.picture)


def find_response(event: FindEvent) -> memory_pb2.FindResponse:
    """Convert a search's event to its message."""
    if isinstance(event, memory_pb2.FindProgress):
        return memory_pb2.FindResponse(progress=event)
    if isinstance(event, memory_pb2.FindSummary):
        return memory_pb2.FindResponse(summary=event)
    return memory_pb2.FindResponse(hit=_hit(event))


def _hit(hit: Hit) -> memory_pb2.FindHit:
    message = memory_pb2.FindHit(
        number=hit.number,
        verdict=hit.verdict,
        begin_us=hit.begin_us,
        end_us=hit.end_us,
        windows=hit.windows,
        segments=hit.segments,
        merged=hit.merged,
        then=hit.then,
        picture_us=hit.picture_us,
    )
    if hit.proposed is not None:
        message.proposed = hit.proposed
    return message
