"""Tenants, who own cameras, watches and jobs; and the camera labels in the headers of segments.

A tenant is a name. Cameras and jobs without one belong to the tenant `default`. A watch with a tenant covers
only that tenant's cameras; a watch without one covers all. The cost of a camera's windows counts for the
camera's tenant.

The name travels with the footage, as a header of segments (`lookout-tenant`) and as a field of the records
made from them. So a replay decides the same, even if the camera's resource has changed since.
"""

from __future__ import annotations

import re
from typing import Final

from lookout.text import clean
from lookout.v1.cameras_pb2 import Camera, CameraLabels
from lookout.v1.watches_pb2 import Watch
from lookout.wire import headers
from lookout.wire.limits import TENANT_CHARS
from lookout.wire.message_json import WireError

#: tenant of cameras and jobs that do not state one
DEFAULT_TENANT: Final = "default"

#: pattern of tenant names for JSON Schema, including the empty name; the custom resources have the same one
TENANT_PATTERN: Final = rf"^([a-z0-9]([-a-z0-9_.]{{0,{TENANT_CHARS - 2}}}[a-z0-9])?)?$"
_NAME: Final = re.compile(TENANT_PATTERN.removesuffix("$") + r"\Z")
#: priorities by their names in command line, resources and headers; in messages, 0 stands for normal
PRIORITIES: Final[dict[str, Watch.Priority]] = {
    "low": Watch.PRIORITY_LOW,
    "normal": Watch.PRIORITY_UNSPECIFIED,
    "high": Watch.PRIORITY_HIGH,
}
_NAMES: Final = {number: name for name, number in PRIORITIES.items()} | {Watch.PRIORITY_NORMAL: "normal"}


def check_tenant(name: str) -> str:
    """Check that a text is a tenant's name.

    Args:
        name: The text; an empty one stands for the tenant `default`.

    Returns:
        The text.

    Raises:
        WireError: The text is not a valid name.
    """
    if not _NAME.match(name):
        raise WireError(
            f"tenant '{clean(name, 40)}': use 1 to {TENANT_CHARS} letters (a-z, no capitals), digits, '-', "
            "'_' and '.', with a letter or digit at both ends"
        )
    return name


def tenant_of(name: str) -> str:
    """Return the tenant in a message's field, in which an empty text means `default`."""
    return name or DEFAULT_TENANT


def priority_name(priority: Watch.Priority) -> str:
    """Return low, normal or high."""
    return _NAMES.get(priority, "normal")


def labelled(labels: CameraLabels) -> bool:
    """Whether any label differs from its default; default labels are omitted from records."""
    return bool(labels.tenant or labels.priority or labels.masks)


def read_labels(record: headers.Headers) -> CameraLabels:
    """Return the camera labels in a segment's headers.

    Raises:
        WireError: The tenant's name or the priority is invalid.
    """
    tenant = check_tenant(headers.text(record, headers.TENANT) or "")
    priority = headers.text(record, headers.PRIORITY) or "normal"
    if priority not in PRIORITIES:
        raise WireError(f"priority {priority[:40]!r} is unknown: choose one of {', '.join(PRIORITIES)}")
    return CameraLabels(tenant=tenant, priority=PRIORITIES[priority])


def label_headers(camera: Camera) -> dict[str, str]:
    """Return the headers with a camera's labels for its segments; default labels are omitted."""
    named = {headers.TENANT: camera.tenant}
    if camera.priority not in (Watch.PRIORITY_UNSPECIFIED, Watch.PRIORITY_NORMAL):
        named[headers.PRIORITY] = priority_name(camera.priority)
    return {name: value for name, value in named.items() if value}
