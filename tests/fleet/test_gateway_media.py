"""Pictures and clips over the API, out of segments in a real Kafka."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image

from lookout.local import KafkaServer
from lookout.runtime.net.links import signed_link
from lookout.runtime.worker import load_settings
from lookout.services.notify.channels.opening import Channels
from lookout.services.notify.composing import Composer
from lookout.services.notify.settings import NotifySettings
from lookout.streams import filmed_pictures
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.video.motion.grids import pack_mask
from lookout.video.segments import SoftwareDecoder, cut
from lookout.wire import CAMERA_HEALTH, headers
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_footage import FilmedCamera
from tests.fleet.gateway_records import BEGIN_MS, alert, publish, records, verdict, watch
from tests.unit.video.segments.clips import encode
from tests.unit.video.segments.test_joining import played

pytestmark = pytest.mark.fleet

#: codec of each camera, and what encodes it
CAMERAS = {
    "gate": ("ts", "libx264", {}),
    "yard/north": ("mp4", "libx265", {"x265-params": "open-gop=0:log-level=none"}),
    "attic": ("avi", "mpeg4", {}),
    "cellar": ("ts", "libx264", {}),
}
SECRET = "cellar"
LINK_KEY = b"a key of links, of the tests"


@pytest.fixture(scope="module")
def process(
    broker: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "link-key").write_bytes(LINK_KEY)
    with ExitStack() as stack:
        settings = {"uri_schemes": "http", "uri_hosts": "127.0.0.1", "uri_networks": "127.0.0.0/8"}
        settings["link_key_file"] = str(folder / "link-key")
        yield gateway(stack, folder, broker.bootstrap, redis_url, settings)


@pytest.fixture
def footage_server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL at which a web server has it."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def cameras(broker: KafkaServer, process: GatewayProcess) -> dict[str, FilmedCamera]:
    """Half a minute of each camera, in segments of a second, and an incident at its tenth second."""
    filmed: dict[str, FilmedCamera] = {}
    for name, (container, codec, options) in CAMERAS.items():
        tenant = "secret" if name == SECRET else ""
        camera = FilmedCamera(broker.bootstrap, name, BEGIN_MS - 10_000, tenant)
        camera.film(encode(container, codec, frames=300, size=(352, 96), speed=1, options=options))
        incident = alert(name, 0, Alert.KIND_CLOSED, tenant)
        for ref, record in camera.frames:
            if record.segment.start_us >= 12_000_000:
                shown = incident.evidence.add(record=ref, row=1)
                at_us = record.segment.frames[1].time_us + record.wall_offset_us
                shown.time.FromMicroseconds(at_us)
                break
        publish(broker.bootstrap, [incident, verdict(name, 0, tenant=tenant)])
        filmed[name] = camera
    publish(broker.bootstrap, [watch()])
    return filmed


@pytest.fixture(scope="module")
def client(process: GatewayProcess, cameras: dict[str, FilmedCamera]) -> Iterator[httpx.Client]:
    with process.signed_in() as signed_in:
        eventually(
            lambda: (
                len(signed_in.get("/v1/incidents").json().get("incidents", [])) == len(cameras)
                and len(signed_in.get("/v1/cameras").json().get("cameras", [])) == len(cameras)
            )
        )
        yield signed_in


def incident_of(client: httpx.Client, camera: str) -> dict[str, Any]:
    """The incident of a camera."""
    return dict(client.get("/v1/incidents", params={"camera": camera}).json()["incidents"][0])


def moment(at_ms: float) -> str:
    """A time as the API takes it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def ranged(camera: FilmedCamera, begin_s: float, end_s: float) -> dict[str, str]:
    """Parameters of a clip, seconds since the camera's begin."""
    begin, end = (moment(camera.begin_ms + 1000 * at_s) for at_s in (begin_s, end_s))
    return {"from": begin, "to": end}


@pytest.mark.parametrize("name", ["gate", "yard/north"])
def test_a_clip_has_every_picture_of_its_time(
    client: httpx.Client, cameras: dict[str, FilmedCamera], name: str
) -> None:
    camera = cameras[name]
    answer = client.get(f"/v1/cameras/{name}/clip.mp4", params=ranged(camera, 3.5, 8.0))
    assert answer.status_code == 200, answer.text
    assert answer.headers["lookout-codec"] == ("h264" if name == "gate" else "hevc")
    expected = [frame.pixels for piece in camera.segments[3:8] for frame in played(piece.data)]
    assert [frame.pixels for frame in played(answer.content)] == expected


def test_the_clip_of_an_incident_has_five_seconds_before_and_after(client: httpx.Client) -> None:
    incident = incident_of(client, "gate")
    facts = client.get(f"/v1/incidents/{incident['id']}/clip.json").json()
    start, end = (datetime.fromisoformat(incident[name]) for name in ("start", "end"))
    (span,) = facts["spans"]
    before = start - datetime.fromisoformat(span["start"])
    after = datetime.fromisoformat(span["end"]) - end
    assert 5 <= before.total_seconds() <= 6  # the keyframe before it
    # The footage ends at 30 s; the incident at 30 s as well.
    assert abs(after.total_seconds()) < 0.2
    answer = client.get(f"/v1/incidents/{incident['id']}/clip.mp4")
    assert len(played(answer.content)) == facts["frames"]
    assert len(answer.content) == facts["bytes"]
    assert answer.headers["content-type"] == facts["media_type"]
    assert facts["media_type"].startswith('video/mp4; codecs="avc1.')


def test_ranges_of_a_clip_make_up_the_whole(client: httpx.Client, cameras: dict[str, FilmedCamera]) -> None:
    params = ranged(cameras["gate"], 0.0, 10.0)
    url = "/v1/cameras/gate/clip.mp4"
    whole = client.get(url, params=params)
    size, tag = len(whole.content), whole.headers["etag"]
    parts = b""
    for begin in range(0, size, size // 3 + 1):
        answer = client.get(
            url, params=params, headers={"range": f"bytes={begin}-{begin + size // 3}", "if-range": tag}
        )
        assert answer.status_code == 206
        assert answer.headers["content-range"].endswith(f"/{size}")
        parts += answer.content
    assert parts == whole.content
    last = client.get(url, params=params, headers={"range": "bytes=-7"})
    assert last.content == whole.content[-7:]
    assert client.get(url, params=params, headers={"range": f"bytes={size}-"}).status_code == 416
    other = client.get(url, params=params, headers={"range": "bytes=0-9", "if-range": '"other"'})
    assert (other.status_code, other.content) == (200, whole.content)


def test_the_picture_of_an_incident_is_its_best_evidence(
    client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    incident = incident_of(client, "gate")
    answer = client.get(f"/v1/incidents/{incident['id']}/picture.jpg")
    assert answer.headers["content-type"] == "image/jpeg"
    shown = np.asarray(Image.open(io.BytesIO(answer.content)), np.int16)
    _, record = next(pair for pair in cameras["gate"].frames if pair[1].segment.start_us >= 12_000_000)
    data = cameras["gate"].segments[12].data
    (filmed,) = filmed_pictures(SoftwareDecoder(), data, record.segment, [1], 1280, mask=None).values()
    assert shown.shape == filmed.shape
    assert np.abs(shown - filmed).mean() < 4  # JPEG
    small = client.get(f"/v1/incidents/{incident['id']}/picture.jpg", params={"width": 64})
    assert Image.open(io.BytesIO(small.content)).width == 64


def test_a_second_model_sees_pictures_of_the_whole_incident(
    client: httpx.Client, cameras: dict[str, FilmedCamera], tmp_path: Path
) -> None:
    (tmp_path / "link-key").write_bytes(LINK_KEY)
    settings = load_settings(
        NotifySettings, {}, mode="local", public_url=str(client.base_url), link_key_file=tmp_path / "link-key"
    )
    composer = Composer(settings)
    frames = Channels(settings, composer).frames
    incident = alert("gate", 0, Alert.KIND_CLOSED)
    begin_ms, end_ms = incident.start.ToMilliseconds(), incident.end.ToMilliseconds()
    times = [begin_ms + (end_ms - begin_ms) * share / 8 for share in (1, 3, 5, 7)]
    paths = [f"/v1/cameras/gate/frames/{moment(at_ms)}.jpg" for at_ms in times]
    expected = [client.get(path, params={"width": 1280}).content for path in paths]
    assert frames(incident, 4) == expected
    assert frames(incident, 1) == [client.get(f"/v1/incidents/{incident.incident}/picture.jpg").content]
    link = composer.frame_urls(incident, 1)[0]
    far = moment(cameras["gate"].begin_ms)  # filmed, and before the incident
    path = f"/v1/shared/incidents/{incident.incident}/frames/{far}.jpg"
    with httpx.Client() as anybody:
        assert anybody.get(link).status_code == 200
        assert anybody.get(link.replace("/frames/2", "/frames/1")).status_code == 401
        refused = anybody.get(signed_link(LINK_KEY, str(client.base_url), path, 60))
        assert (refused.status_code, "is not within its clip" in refused.text) == (404, True)


def test_an_overlay_dims_what_was_not_computed(
    client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    camera = cameras["gate"]
    ref, frames = next(pair for pair in camera.frames if pair[1].segment.start_us >= 15_000_000)
    at = moment(camera.begin_ms + frames.segment.frames[1].time_us // 1000)
    url = f"/v1/cameras/gate/frames/{at}.jpg"
    unknown = client.get(url, params={"overlay": "patches"})
    assert (unknown.status_code, "overlay" in unknown.json()["detail"]) == (404, True)
    computed = np.zeros((4, 8), np.bool_)
    computed[1, 2] = computed[3, 7] = True
    # The segment's first frame lies in the block before.
    before = StrideBlock(index=6, group_rows=4, group_cols=8, inputs=[ref])
    before.frames.add(time_us=frames.segment.frames[0].time_us, input=0, row=0)
    before.patches.add(frames=[0], anchor=True, keep=pack_mask(np.ones((4, 8), np.bool_)), kept=32)
    camera.write_tokens(TokensRecord(camera="gate", epoch=frames.epoch, block=before), ref.partition)
    block = StrideBlock(index=7, group_rows=4, group_cols=8, inputs=[ref])
    block.frames.add(time_us=frames.segment.frames[1].time_us, input=0, row=1)
    block.patches.add(frames=[0], keep=pack_mask(computed), kept=2)
    camera.write_tokens(TokensRecord(camera="gate", epoch=frames.epoch, block=block), ref.partition)
    plain, shown = (
        np.asarray(Image.open(io.BytesIO(client.get(url, params=params).content)), np.int16)
        for params in ({}, {"overlay": "patches"})
    )
    height, width = plain.shape[0] // 4, plain.shape[1] // 8
    for row in range(4):
        for column in range(8):
            cell = np.s_[
                row * height + 4 : (row + 1) * height - 4, column * width + 4 : (column + 1) * width - 4
            ]
            expected = plain[cell] if computed[row, column] else plain[cell] // 4
            assert np.abs(shown[cell] - expected).mean() < 5, (row, column)
    assert client.get(url, params={"overlay": "other"}).status_code == 422


def test_the_picture_of_a_time_is_the_nearest_sampled_one(
    client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    camera = cameras["gate"]
    pictures = {
        at_s: client.get(f"/v1/cameras/gate/frames/{moment(camera.begin_ms + 1000 * at_s)}.jpg").content
        for at_s in (4.0, 4.1, 4.6)
    }
    assert pictures[4.0] == pictures[4.1] != pictures[4.6]
    nothing = client.get(f"/v1/cameras/gate/frames/{moment(camera.begin_ms - 60_000)}.jpg")
    assert nothing.status_code == 404


def test_a_camera_whose_codec_browsers_do_not_play_has_pictures_and_no_clips(
    client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    problem = client.get("/v1/cameras/attic/clip.mp4", params=ranged(cameras["attic"], 0, 5))
    assert problem.status_code == 404
    assert "mpeg4" in problem.json()["detail"]
    assert "/v1/cameras/attic/frames/" in problem.json()["detail"]
    incident = incident_of(client, "attic")
    assert client.get(f"/v1/incidents/{incident['id']}/picture.jpg").status_code == 200


def test_a_time_without_footage_and_wrong_times_are_refused(
    client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    url = "/v1/cameras/gate/clip.mp4"
    assert client.get(url, params=ranged(cameras["gate"], -900, -800)).status_code == 404
    assert client.get(url, params=ranged(cameras["gate"], 5, 5)).status_code == 400
    assert client.get(url, params=ranged(cameras["gate"], 0, 301)).status_code == 400
    assert client.get(url, params={"from": "now", "to": "then"}).status_code == 400
    assert client.get("/v1/cameras/nobody/clip.mp4", params=ranged(cameras["gate"], 0, 5)).status_code == 404


def test_segments_that_were_published_as_uris_make_clips_and_pictures(
    broker: KafkaServer, client: httpx.Client, footage_server: tuple[Path, str]
) -> None:
    folder, url = footage_server
    fetched = {"uri_schemes": "http", "uri_hosts": "127.0.0.1", "uri_networks": "127.0.0.0/8"}
    camera = FilmedCamera(broker.bootstrap, "linked", BEGIN_MS - 10_000, **fetched)
    pieces = list(cut(io.BytesIO(encode("ts", "libx264", frames=60, size=(352, 96), speed=1)), target_s=1.0))
    for number, piece in enumerate(pieces):
        (folder / f"{number}.ts").write_bytes(piece.data)
        at_ms = camera.begin_ms + piece.start_us // 1000
        camera.publish(f"{url}/{number}.ts\r\n".encode(), at_ms, **{headers.CONTENT_TYPE: headers.URI_LIST})
    publish(broker.bootstrap, [verdict("linked", 0)])
    eventually(lambda: "linked" in client.get("/v1/cameras").text)
    answer = client.get("/v1/cameras/linked/clip.mp4", params=ranged(camera, 0, 6))
    assert [frame.pixels for frame in played(answer.content)] == [
        frame.pixels for piece in pieces for frame in played(piece.data)
    ]
    at = moment(camera.begin_ms + 2000)
    assert client.get(f"/v1/cameras/linked/frames/{at}.jpg").status_code == 200
    for file in folder.iterdir():  # gone: neither is there, and nothing fails
        file.unlink()
    assert client.get("/v1/cameras/linked/clip.mp4", params=ranged(camera, 1, 6)).status_code == 404


def test_another_tenants_footage_is_not_shown(
    client: httpx.Client, process: GatewayProcess, cameras: dict[str, FilmedCamera]
) -> None:
    secret = incident_of(client, SECRET)
    token = client.post(
        "/v1/tokens", json={"name": "other", "role": "viewer", "tenants": ["default"]}
    ).json()["secret"]
    params = ranged(cameras[SECRET], 0, 5)
    at = moment(cameras[SECRET].begin_ms)
    with process.client(headers={"authorization": f"Bearer {token}"}) as other:
        eventually(lambda: other.get("/v1/session").status_code == 200)
        assert other.get("/v1/cameras/gate/clip.mp4", params=params).status_code == 200
        for path in (
            f"/v1/incidents/{secret['id']}/picture.jpg",
            f"/v1/incidents/{secret['id']}/clip.mp4",
            f"/v1/incidents/{secret['id']}/clip.json",
            f"/v1/cameras/{SECRET}/clip.mp4",
            f"/v1/cameras/{SECRET}/clip.json",
            f"/v1/cameras/{SECRET}/frames/{at}.jpg",
        ):
            assert other.get(path, params=params).status_code == 404, path
            assert client.get(path, params=params).status_code == 200, path


def test_every_look_is_in_the_audit_log_once(
    client: httpx.Client, broker: KafkaServer, cameras: dict[str, FilmedCamera]
) -> None:
    params = ranged(cameras["gate"], 20, 25)
    for _ in range(3):  # a player asks for ranges
        client.get("/v1/cameras/gate/clip.mp4", params=params, headers={"range": "bytes=0-99"})
    subject = f"gate@{params['from']}"
    looks = [
        entry for entry in records(broker.bootstrap, "audit.v1") if subject.encode() in (entry.value() or b"")
    ]
    assert len(looks) == 1
    assert b'"clip.view"' in (looks[0].value() or b"")
    assert b'"local"' in (looks[0].value() or b"")


def test_what_was_erased_is_not_shown_from_kafka_or_from_memory(
    client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    camera = cameras["yard/north"]
    url, params = "/v1/cameras/yard/north/clip.mp4", ranged(camera, 0, 10)
    before = played(client.get(url, params=params).content)
    erased = client.post(
        "/v1/erasures",
        json={
            "camera": camera.camera,
            "since": moment(camera.begin_ms + 4000),
            "until": moment(camera.begin_ms + 6000),
        },
    )
    assert erased.status_code < 300, erased.text
    eventually(lambda: client.get(url, params=params).content != b"")
    after = client.get(url, params=params)
    kept = [*camera.segments[:3], *camera.segments[7:10]]
    shown = {frame.pixels for frame in played(after.content)}
    assert {frame.pixels for piece in kept for frame in played(piece.data)} <= shown
    gone = [frame for piece in camera.segments[4:6] for frame in played(piece.data)]
    assert len(before) == 100
    assert not shown & {frame.pixels for frame in gone}


INSIDE = [(0.1, 0.2), (0.6, 0.2), (0.6, 0.8), (0.1, 0.8)]
DOOR = {"name": "door", "points": [{"x": x, "y": y} for x, y in INSIDE]}


def is_grey(pixels: np.ndarray[Any, np.dtype[np.int16]]) -> bool:
    """Whether the inside of the door is hidden in a picture, as far as its compression lets it be grey."""
    height, width = pixels.shape[:2]
    inside = pixels[round(0.25 * height) : round(0.75 * height), round(0.15 * width) : round(0.55 * width)]
    return bool(np.abs(inside - 130).max() < 12)


def test_a_mask_hides_pictures_and_clips_that_were_filmed_before_it(
    process: GatewayProcess, client: httpx.Client, cameras: dict[str, FilmedCamera]
) -> None:
    """The last test of this file: the mask stays."""
    camera = cameras["gate"]
    at = moment(camera.begin_ms + 20_000)
    urls = [
        f"/v1/cameras/gate/frames/{at}.jpg",
        f"/v1/incidents/{incident_of(client, 'gate')['id']}/picture.jpg",
    ]

    def picture(url: str) -> np.ndarray[Any, np.dtype[np.int16]]:
        answer = client.get(url)
        assert answer.status_code == 200, answer.text
        return np.asarray(Image.open(io.BytesIO(answer.content)), np.int16)

    params = ranged(camera, 3.0, 6.0)
    clip = client.get("/v1/cameras/gate/clip.mp4", params=params)
    assert "lookout-masked" not in clip.headers
    assert not any(is_grey(picture(url)) for url in urls)
    masks = "/v1/cameras/gate/masks"
    assert client.get(masks).json() == {"camera": "gate"}
    wrong = client.put(masks, json={"hide": [{"points": DOOR["points"][:2]}]})
    assert (wrong.status_code, "three different points" in wrong.json()["detail"]) == (400, True), wrong.text
    added = client.put(masks, json={"hide": [DOOR]})
    assert added.status_code == 200, added.text
    assert [version["version"] for version in added.json()["versions"]] == [1]
    assert all(is_grey(picture(url)) for url in urls)
    assert client.get(urls[0]).headers["lookout-masked"] == "true"
    masked = client.get("/v1/cameras/gate/clip.mp4", params=params)
    assert (masked.headers["lookout-masked"], masked.headers["lookout-codec"]) == ("true", "h264")
    with av.open(io.BytesIO(masked.content)) as file:
        frames = [frame.to_ndarray(format="rgb24").astype(np.int16) for frame in file.decode(video=0)]
    assert len(frames) == len(played(clip.content))
    assert all(map(is_grey, frames))
    assert client.get("/v1/cameras/gate/clip.json", params=params).json()["masked"] is True
    late = client.put(masks, json={"hide": []})
    assert (late.status_code, "version 1" in late.json()["detail"]) == (409, True), late.text


def test_only_an_administrator_lifts_a_mask(client: httpx.Client, process: GatewayProcess) -> None:
    tokens = {}
    for role in ("viewer", "operator"):
        answer = client.post("/v1/tokens", json={"name": f"mask-{role}", "role": role})
        tokens[role] = {"authorization": f"Bearer {answer.json()['secret']}"}
    masks, other = "/v1/cameras/cellar/masks", {"name": "desk", "points": DOOR["points"][1:]}
    with httpx.Client(base_url=client.base_url) as caller:
        assert caller.put(masks, json={"hide": [DOOR]}, headers=tokens["viewer"]).status_code == 403
        assert caller.put(masks, json={"hide": [DOOR]}, headers=tokens["operator"]).status_code == 200
        more = {"hide": [DOOR, other], "version": 1}
        assert caller.put(masks, json=more, headers=tokens["operator"]).status_code == 200
        less = {"hide": [DOOR], "version": 2}
        refused = caller.put(masks, json=less, headers=tokens["operator"])
        assert (refused.status_code, "administrator" in refused.json()["detail"]) == (403, True)
        assert len(caller.get(masks, headers=tokens["viewer"]).json()["versions"]) == 2
    assert client.put(masks, json=less).status_code == 200

    def actions() -> list[str]:
        entries = client.get("/v1/audit", params={"limit": 50}).json()["entries"]
        return sorted(entry["action"] for entry in entries if entry["action"].startswith("mask."))

    expected = ["mask.lift", "mask.write", "mask.write", "mask.write"]
    assert eventually(lambda: len(found := actions()) == len(expected) and found) == expected


def test_the_picture_of_a_camera_fault_is_what_the_camera_showed_when_it_began(
    client: httpx.Client, cameras: dict[str, FilmedCamera], broker: KafkaServer
) -> None:
    camera = cameras["gate"]
    fault = alert("gate", 7, Alert.KIND_OPENED)
    fault.watch, fault.cause = CAMERA_HEALTH, "covered"
    fault.start.FromMilliseconds(camera.begin_ms + 4000)
    publish(broker.bootstrap, [fault])
    picture = f"/v1/incidents/{fault.incident}/picture.jpg"
    eventually(lambda: client.get(picture).status_code == 200, 60)
    same = client.get(f"/v1/cameras/gate/frames/{moment(camera.begin_ms + 4000)}.jpg", params={"width": 1280})
    assert client.get(picture, params={"width": 1280}).content == same.content
