"""Checks cameras that agents are asked to pull."""

from __future__ import annotations

from lookout.errors import LookoutError
from lookout.rules.types import is_time_zone
from lookout.text import clean
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox.places import url_fault
from lookout.wire import check_tenant, is_camera_id
from lookout.wire.ranges import check_ranges


class CameraError(LookoutError):
    """The camera cannot be pulled; the text names the field."""


def check_camera(camera: Camera) -> None:
    """Check that agents can pull a camera.

    Raises:
        CameraError: A field is missing or outside its range, or the URL contains a password.
    """
    if not is_camera_id(camera.id):
        raise CameraError(f"id {clean(camera.id, 40)!r}: must be printable text of 1 to 200 bytes")
    try:
        check_ranges(camera)
        check_tenant(camera.tenant)
    except LookoutError as error:
        raise CameraError(str(error)) from None
    if fault := url_fault(camera.url):
        raise CameraError(f"url: {fault}")
    if fault := time_zone_fault(camera.time_zone):
        raise CameraError(f"time_zone: {fault}")


def time_zone_fault(name: str) -> str:
    """Return what is wrong with a camera's time zone; "" if it is valid or not set."""
    if not name or is_time_zone(name):
        return ""
    return f"{clean(name, 40)!r} is not an IANA time zone such as Europe/Berlin"
