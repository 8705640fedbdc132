"""Builds new versions of privacy masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lookout.errors import LookoutError
from lookout.rules.masks import layers_of
from lookout.v1.masks_pb2 import CameraMasks, MaskVersion
from lookout.v1.watches_pb2 import Zone
from lookout.wire import is_camera_id, to_json
from lookout.wire.ranges import check_ranges

_VERSIONS: Final = 100
#: most bytes of a record; Kafka takes up to 1 MiB
_BYTES: Final = 900_000


class MaskError(LookoutError):
    """The masks are invalid; the text names the field and says why."""


def next_masks(
    camera: str, before: CameraMasks | None, hide: Sequence[Zone], keep: Sequence[Zone], by: str
) -> CameraMasks:
    """Return a camera's masks with a new version that applies from now on.

    If there are too many versions, the oldest are dropped. Footage that is older than the remaining versions
    and not yet decoded is then hidden completely.

    Args:
        camera: The camera's id.
        before: The camera's masks so far.
        hide: Polygons whose inside is hidden.
        keep: Polygons outside of which everything is hidden, if there are any.
        by: Name of the person who writes the version.

    Raises:
        MaskError: The masks are invalid or too large.
    """
    if not is_camera_id(camera):
        raise MaskError("camera: must be printable text of 1 to 200 bytes")
    masks = CameraMasks(camera=camera)
    if before is not None:
        masks.versions.extend(before.versions)
    number = masks.versions[-1].version + 1 if masks.versions else 1
    version = masks.versions.add(version=number, hide=hide, keep=keep, by=by[:200])
    version.since.GetCurrentTime()
    if len(masks.versions) > 1:  # not before the last version, even if this clock is slow
        earliest = masks.versions[-2].since.ToNanoseconds() + 1000
        version.since.FromNanoseconds(max(version.since.ToNanoseconds(), earliest))
    try:
        check_ranges(version)
        layers_of(version)
    except LookoutError as error:
        raise MaskError(str(error)) from None
    while len(masks.versions) > _VERSIONS or len(to_json(masks)) > _BYTES:
        if len(masks.versions) == 1:
            raise MaskError("hide, keep: these polygons do not fit in a record: use fewer points")
        del masks.versions[0]
    return masks


def uncovers(before: CameraMasks | None, after: CameraMasks) -> bool:
    """Whether the newest version may show something that the previous one hides. It cannot if it has all
    polygons that the previous version hides, and no additional polygons to keep.
    """
    old = before.versions[-1] if before is not None and before.versions else MaskVersion()
    new = after.versions[-1]
    hidden = {_shape(zone) for zone in new.hide}
    if any(_shape(zone) not in hidden for zone in old.hide):
        return True
    shown = {_shape(zone) for zone in old.keep}
    return bool(shown) and (not new.keep or any(_shape(zone) not in shown for zone in new.keep))


def _shape(zone: Zone) -> tuple[tuple[float, float], ...]:
    return tuple((point.x, point.y) for point in zone.points)
