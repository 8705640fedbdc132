"""Names of tenants, and the headers that carry them."""

from __future__ import annotations

import pytest

from lookout.v1.cameras_pb2 import Camera, CameraLabels
from lookout.v1.watches_pb2 import Watch
from lookout.wire import (
    WireError,
    check_tenant,
    headers,
    label_headers,
    priority_name,
    read_labels,
    tenant_of,
)

WRONG = [
    "-acme",
    "Acme",  # a second tenant beside acme, which no quota names
    "acme.",
    "a b",
    "ac/me",
    "äcme",
    "\N{FULLWIDTH LATIN SMALL LETTER A}",
    "9" * 5000,
    "a\n",
    " ",
]


@pytest.mark.parametrize("name", ["", "a", "acme", "acme_2.north-west", "9" * 63])
def test_a_name_is_a_label(name: str) -> None:
    assert check_tenant(name) == name


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_name_is_refused_in_a_line(name: str) -> None:
    with pytest.raises(WireError, match=r"^tenant .*63 letters") as caught:
        check_tenant(name)
    assert len(str(caught.value)) < 200


def test_cameras_without_a_tenant_are_of_one() -> None:
    assert (tenant_of(""), tenant_of("acme")) == ("default", "acme")


@pytest.mark.parametrize(
    "camera",
    [Camera(), Camera(tenant="acme"), Camera(tenant="acme", priority=Watch.PRIORITY_LOW)],
)
def test_segments_carry_what_the_camera_says(camera: Camera) -> None:
    labels = read_labels(headers.encode(label_headers(camera)))
    assert labels == CameraLabels(tenant=camera.tenant, priority=camera.priority)


def test_normal_is_not_written() -> None:
    assert label_headers(Camera(priority=Watch.PRIORITY_NORMAL)) == {}
    assert priority_name(Watch.PRIORITY_NORMAL) == priority_name(Watch.PRIORITY_UNSPECIFIED) == "normal"


@pytest.mark.parametrize(
    ("name", "value"),
    [(headers.TENANT, b"\xff"), (headers.PRIORITY, b"urgent" * 1000), (headers.TENANT, b"a b")],
)
def test_headers_that_say_nothing_are_refused(name: str, value: bytes) -> None:
    with pytest.raises(WireError) as caught:
        read_labels(((name, value),))
    assert len(str(caught.value)) < 200
