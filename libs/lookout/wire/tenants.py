"""Tenants: whose a camera, a watch or a job is; and what a camera's segments say of it.

A tenant is a name. Cameras and jobs without one are of the tenant `default`. A watch with a tenant asks that
tenant's cameras alone, one without asks all. What a camera's windows use is used by the camera's tenant.

The name travels with the footage: it is a header of segments (`lookout-tenant`), and a field of the records
that come of them. So a replay decides the same, whatever the camera's resource says by then.
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

#: of cameras and jobs that name none
DEFAULT_TENANT: Final = "default"

#: of tenants, as JSON Schema writes it, with the empty name; the custom resources have the same
TENANT_PATTERN: Final = rf"^([a-z0-9]([-a-z0-9_.]{{0,{TENANT_CHARS - 2}}}[a-z0-9])?)?$"
_NAME: Final = re.compile(TENANT_PATTERN.removesuffix("$") + r"\Z")
#: as command line, resources and headers name them; on the wire 0 stands for normal
PRIORITIES: Final[dict[str, Watch.Priority]] = {
    "low": Watch.PRIORITY_LOW,
    "normal": Watch.PRIORITY_UNSPECIFIED,
    "high": Watch.PRIORITY_HIGH,
}
_NAMES: Final = {number: name for name, number in PRIORITIES.items()} | {Watch.PRIORITY_NORMAL: "normal"}


def check_tenant(name: str) -> str:
    """Check that a text names a tenant.

    Args:
        name: The text; an empty one stands for the tenant `default`.

    Returns:
        The text.

    Raises:
        WireError: It is no name.
    """
    if not _NAME.match(name):
        raise WireError(
            f"tenant '{clean(name, 40)}': 1 to {TENANT_CHARS} letters (a-z, no capitals), digits, '-', '_' "
            "and '.' are needed, with a letter or digit at both ends"
        )
    return name


def tenant_of(name: str) -> str:
    """The tenant that a field of the wire names."""
    return name or DEFAULT_TENANT


def priority_name(priority: Watch.Priority) -> str:
    """low, normal or high."""
    return _NAMES.get(priority, "normal")


def labelled(labels: CameraLabels) -> bool:
    """Whether they say anything but the defaults, which records leave out."""
    return bool(labels.tenant or labels.priority or labels.masks)


def read_labels(record: headers.Headers) -> CameraLabels:
    """What a segment's headers say of its camera.

    Raises:
        WireError: A header says nothing that there is.
    """
    tenant = check_tenant(headers.text(record, headers.TENANT) or "")
    priority = headers.text(record, headers.PRIORITY) or "normal"
    if priority not in PRIORITIES:
        raise WireError(f"priority {priority[:40]!r}: one of {', '.join(PRIORITIES)} is needed")
    return CameraLabels(tenant=tenant, priority=PRIORITIES[priority])


def label_headers(camera: Camera) -> dict[str, str]:
    """The headers of a camera's segments that say what `camera` says; none for what is the default."""
    named = {headers.TENANT: camera.tenant}
    if camera.priority not in (Watch.PRIORITY_UNSPECIFIED, Watch.PRIORITY_NORMAL):
        named[headers.PRIORITY] = priority_name(camera.priority)
    return {name: value for name, value in named.items() if value}
