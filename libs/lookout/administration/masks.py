"""Masks as people change them."""

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
#: of a record, which Kafka takes up to 1 MiB
_BYTES: Final = 900_000


class MaskError(LookoutError):
    """Masks that cannot be written; the text names the field and why."""


def next_masks(
    camera: str, before: CameraMasks | None, hide: Sequence[Zone], keep: Sequence[Zone], by: str
) -> CameraMasks:
    """A camera's masks with a version that holds from now on.

    The oldest versions are left out where there are too many; what was filmed before the rest and is not
    decoded yet is then hidden whole.

    Args:
        camera: Its id.
        before: Its masks so far.
        hide: Nothing inside these is shown.
        keep: If there are any, nothing outside these is shown.
        by: Who writes it.

    Raises:
        MaskError: They cannot be applied.
    """
    if not is_camera_id(camera):
        raise MaskError("camera: printable text of 1 to 200 bytes is needed")
    masks = CameraMasks(camera=camera)
    if before is not None:
        masks.versions.extend(before.versions)
    number = masks.versions[-1].version + 1 if masks.versions else 1
    version = masks.versions.add(version=number, hide=hide, keep=keep, by=by[:200])
    version.since.GetCurrentTime()
    if len(masks.versions) > 1:  # a slow clock must not make this look like an older record
        earliest = masks.versions[-2].since.ToNanoseconds() + 1000
        version.since.FromNanoseconds(max(version.since.ToNanoseconds(), earliest))
    try:
        check_ranges(version)
        layers_of(version)
    except LookoutError as error:
        raise MaskError(str(error)) from None
    while len(masks.versions) > _VERSIONS or len(to_json(masks)) > _BYTES:
        if len(masks.versions) == 1:
            raise MaskError("hide, keep: these polygons are larger than a record may be; use fewer points")
        del masks.versions[0]
    return masks


def uncovers(before: CameraMasks | None, after: CameraMasks) -> bool:
    """Whether the newest version may show something that the one before it hides.

    It does not if it has all polygons of the one before that hide, and no other ones to keep.
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
