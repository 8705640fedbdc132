"""Kept evidence, in a folder and in S3: shown when Kafka has lost it, and erased with its camera.

Uploaded recordings are stored in the same two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import obstore
import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from lookout.local import KafkaServer
from lookout.recordings.jobs.ranges import RangedRecording
from lookout.recordings.jobs.sources import Sources
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.net.object_store import open_store
from lookout.v1.alerts_pb2 import Alert
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_footage import FilmedCamera, noise
from tests.fleet.gateway_records import BEGIN_MS, QUESTION, alert, publish, records, verdict
from tests.s3_server import BUCKET, S3Server, find_server
from tests.unit.video.segments.clips import encode
from tests.unit.video.segments.test_joining import played

pytestmark = [pytest.mark.fleet, pytest.mark.long]


class Keep:
    """A gateway that keeps evidence, and a camera with an incident."""

    def __init__(self, kafka: str, process: GatewayProcess, client: httpx.Client, url: str) -> None:
        self.kafka, self.process, self.client = kafka, process, client
        self._store = open_store(url)
        self.uploads = process.settings["upload_url"]

    def film(
        self,
        name: str,
        kind: Alert.Kind = Alert.KIND_CLOSED,
        codec: str = "libx264",
        watch: str = "lying",
    ) -> str:
        """Half a minute of a camera with an incident at its tenth second; the incident's path."""
        camera = FilmedCamera(self.kafka, name, BEGIN_MS - 10_000)
        container = "avi" if codec == "mpeg4" else "ts"
        camera.film(encode(container, codec, frames=300, size=(352, 96), speed=1))
        self.incident(name, kind, camera, watch)
        path = f"/v1/incidents/{alert(name, 0, watch=watch).incident}"
        eventually(lambda: self.client.get(path).status_code == 200)
        return path

    def incident(self, name: str, kind: Alert.Kind, camera: FilmedCamera, watch: str = "lying") -> None:
        """An alert of the camera's incident."""
        message = alert(name, 0, kind, watch=watch)
        ref, record = next(pair for pair in camera.frames if pair[1].segment.start_us >= 12_000_000)
        shown = message.evidence.add(record=ref, row=1)
        shown.time.FromMicroseconds(record.segment.frames[1].time_us + record.wall_offset_us)
        publish(self.kafka, [message, verdict(name, 0)])

    def stored(self) -> set[str]:
        """Names of everything in the store."""
        return {str(entry["path"]) for chunk in obstore.list(self._store) for entry in chunk}

    def lose_footage(self) -> None:
        """Kafka has no segment any more."""
        admin = AdminClient({"bootstrap.servers": self.kafka})
        for topic in ("camera.segments.v1", "frames.v1"):
            partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
            places = [TopicPartition(topic, number, OFFSET_END) for number in partitions]
            for future in admin.delete_records(places).values():
                future.result()


@pytest.fixture(scope="module")
def broker(quick_java: None) -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server


#: obstore serves both kinds; that kept objects are alike on S3 costs a gateway of its own
each_store = pytest.mark.parametrize(
    "keep", ["folder", pytest.param("s3", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture(scope="module")
def keep(
    broker: KafkaServer,
    redis_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Keep]:
    folder = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        url = str(folder / "kept")
        if request.param == "s3":
            if find_server() is None:
                pytest.skip("there is no S3 server, and no Go to build one")
            server = stack.enter_context(S3Server(folder / "s3"))
            for name, value in server.environment.items():
                patch.setenv(name, value)
            url = f"s3://{BUCKET}/evidence"
        settings = {
            "keep_url": url,
            "keep_bytes": str(50 << 20),
            "upload_url": f"{url.removesuffix('/evidence')}/uploads",
            "upload_bytes": str(32 << 20),
        }
        process = gateway(stack, folder, broker.bootstrap, redis_url, settings)
        client = stack.enter_context(process.signed_in())
        yield Keep(broker.bootstrap, process, client, url)


def kept_of(keep: Keep, path: str) -> dict[str, Any]:
    """What the gateway says about kept evidence."""
    answer = keep.client.get(f"{path}/keep")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def name_of(request: pytest.FixtureRequest) -> str:
    """A camera for one test."""
    return request.node.name.replace("[", "-").replace("]", "")[-60:]


@each_store
def test_kept_evidence_outlives_the_footage(keep: Keep, request: pytest.FixtureRequest) -> None:
    path = keep.film(name_of(request))
    paths = [f"{path}/{what}" for what in ("clip.mp4", "clip.json", "picture.jpg")]
    before = [keep.client.get(path).content for path in paths]
    assert keep.client.get(f"{path}/keep").status_code == 404
    made = keep.client.post(f"{path}/keep")
    assert made.status_code == 200, made.text
    assert made.json()["complete"] is True
    assert kept_of(keep, path) == made.json()
    assert keep.client.post(f"{path}/keep").json() == made.json()  # again changes nothing
    keep.lose_footage()
    keep.process.service.stop(0.0)  # what it remembers does not help
    keep.process.start()
    with keep.process.signed_in() as client:
        keep.client.headers.update(client.headers)
        keep.client.cookies.update(client.cookies)
        after = [client.get(path) for path in paths]
        assert [answer.content for answer in after] == before
        assert after[0].headers["lookout-codec"] == "h264"
        assert len(played(after[0].content)) == client.get(f"{path}/clip.json").json()["frames"]
        wider = client.get(f"{path}/clip.mp4", params={"pad": 9})  # better than nothing
        assert wider.content == before[0]
        part = client.get(f"{path}/clip.mp4", headers={"range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, before[0][10:20])
        assert client.delete(f"{path}/keep").status_code == 204
        assert client.get(f"{path}/clip.mp4").status_code == 404
        assert client.delete(f"{path}/keep").status_code == 404
    incident = path.rpartition("/")[2]
    assert not [name for name in keep.stored() if incident in name]
    actions = [record.value() or b"" for record in records(keep.kafka, "audit.v1")]
    for action in (b"evidence.keep", b"evidence.release"):
        assert [value for value in actions if action in value and incident.encode() in value]


@each_store
def test_a_watch_keeps_the_evidence_of_its_incidents(keep: Keep, request: pytest.FixtureRequest) -> None:
    asked = keep.client.put("/v1/watches/keeps", json={"question": QUESTION, "cameras": ["x"], "keep": True})
    assert (asked.status_code, asked.json()["watch"]["keep"]) == (200, True)
    path = keep.film(name_of(request), watch="keeps")
    eventually(lambda: keep.client.get(f"{path}/keep").status_code == 200)
    kept = kept_of(keep, path)
    assert (kept["kept_by"], kept["complete"], kept["picture"]) == ("watch keeps", True, True)
    assert keep.client.get(f"{path}/clip.mp4").status_code == 200
    assert keep.client.delete(f"{path}/keep").status_code == 204


@each_store
def test_a_camera_without_clips_keeps_its_picture(keep: Keep, request: pytest.FixtureRequest) -> None:
    path = keep.film(name_of(request), codec="mpeg4")
    kept = keep.client.post(f"{path}/keep").json()
    assert "clip" not in kept
    picture = keep.client.get(f"{path}/picture.jpg").content
    keep.lose_footage()
    assert keep.client.get(f"{path}/picture.jpg", params={"width": 200}).content == picture


@each_store
def test_an_open_incident_is_kept_again_when_it_is_closed(keep: Keep, request: pytest.FixtureRequest) -> None:
    name = name_of(request)
    camera = FilmedCamera(keep.kafka, name, BEGIN_MS - 10_000)
    camera.film(encode("ts", "libx264", frames=400, size=(352, 96), speed=1))
    keep.incident(name, Alert.KIND_OPENED, camera)
    path = f"/v1/incidents/{alert(name, 0).incident}"
    eventually(lambda: keep.client.get(path).status_code == 200)
    first = keep.client.post(f"{path}/keep").json()
    assert first["complete"] is False
    keep.incident(name, Alert.KIND_CLOSED, camera)  # ten seconds later
    eventually(lambda: kept_of(keep, path)["complete"])
    assert kept_of(keep, path)["clip"]["seconds"] > first["clip"]["seconds"] + 5


@each_store
def test_what_does_not_fit_is_refused_until_something_is_released(
    keep: Keep, request: pytest.FixtureRequest
) -> None:
    paths, clip = [], noise(30, (320, 240))
    assert 26 << 20 < len(clip) * 25 // 30 < 48 << 20  # one fits, two do not
    for number in range(2):
        name = f"{name_of(request)}-{number}"
        camera = FilmedCamera(keep.kafka, name, BEGIN_MS - 10_000)
        camera.film(clip)
        keep.incident(name, Alert.KIND_CLOSED, camera)
        paths.append(f"/v1/incidents/{alert(name, 0).incident}")
    eventually(lambda: keep.client.get(paths[1]).status_code == 200)
    assert keep.client.post(f"{paths[0]}/keep").status_code == 200
    refused = keep.client.post(f"{paths[1]}/keep")
    assert (refused.status_code, "LOOKOUT_KEEP_BYTES" in refused.json()["detail"]) == (409, True)
    assert keep.client.get(f"{paths[1]}/keep").status_code == 404
    assert keep.client.delete(f"{paths[0]}/keep").status_code == 204
    assert keep.client.post(f"{paths[1]}/keep").status_code == 200
    assert keep.client.delete(f"{paths[1]}/keep").status_code == 204


@each_store
def test_other_tenants_and_viewers_keep_nothing(keep: Keep, request: pytest.FixtureRequest) -> None:
    path = keep.film(name_of(request))
    assert keep.client.post(f"{path}/keep").status_code == 200
    for more, expected in (({"role": "viewer"}, 403), ({"role": "operator", "tenants": ["south"]}, 404)):
        made = keep.client.post("/v1/tokens", json={"name": "other", **more}).json()
        with keep.process.client(headers={"authorization": f"Bearer {made['secret']}"}) as other:
            eventually(lambda: other.get("/v1/session").status_code == 200)
            assert other.post(f"{path}/keep").status_code == expected
            assert other.delete(f"{path}/keep").status_code == expected
            assert other.get(f"{path}/keep").status_code == (200 if expected == 403 else 404)
    keep.lose_footage()
    with keep.process.client(headers={"authorization": f"Bearer {made['secret']}"}) as other:
        assert other.get(f"{path}/clip.mp4").status_code == 404
    assert keep.client.get(f"{path}/clip.mp4").status_code == 200


@each_store
def test_an_erasure_removes_it_and_its_receipt_says_so(keep: Keep, request: pytest.FixtureRequest) -> None:
    name = name_of(request)
    path, other = keep.film(name), keep.film(f"{name}-other")
    for one in (path, other):
        assert keep.client.post(f"{one}/keep").status_code == 200
    asked = keep.client.post("/v1/erasures", json={"camera": name})
    assert asked.status_code == 202, asked.text
    assert keep.client.get(f"{path}/clip.mp4").status_code == 404  # at once
    identity = asked.json()["erasures"][0]["erasure"]["id"]

    def confirmed() -> list[dict[str, Any]]:
        view = keep.client.get(f"/v1/erasures/{identity}").json()
        return [entry for entry in view.get("confirmations", []) if entry["instance"] == "kept-evidence"]

    (confirmation,) = eventually(confirmed)
    assert confirmation["parts"] == [{"what": "kept evidence", "count": 1}]
    incident = path.rpartition("/")[2]
    assert not [stored for stored in keep.stored() if incident in stored]
    assert [stored for stored in keep.stored() if other.rpartition("/")[2] in stored]


@each_store
def test_a_recording_is_uploaded_in_pieces(keep: Keep, request: pytest.FixtureRequest) -> None:
    film = bytes(range(256)) * (12 << 12)  # several parts of S3
    pieces = (film[begin : begin + 100_000] for begin in range(0, len(film), 100_000))
    made = keep.client.post("/v1/uploads", params={"name": "Gate 1.mp4"}, content=pieces)
    assert made.status_code == 201, made.text
    uri, size = made.json()["uri"], int(made.json()["bytes"])
    assert (size, uri.endswith("-Gate-1.mp4")) == (len(film), True)
    with ExitStack() as opened:
        data = opened.enter_context(Sources([keep.uploads], stores=[keep.uploads]).open(uri)).data
        file = data.open() if isinstance(data, RangedRecording) else data.open("rb")
        assert opened.enter_context(file).read(size + 1) == film  # as a job reads it
    too_large = keep.client.post("/v1/uploads", params={"name": "b.mp4"}, content=bytes(21 << 20))
    assert (too_large.status_code, "LOOKOUT_UPLOAD_BYTES" in too_large.json()["detail"]) == (413, True)
    assert keep.client.post("/v1/uploads", params={"name": "b.txt"}, content=b"x").status_code == 400
    viewer = keep.client.post("/v1/tokens", json={"name": "viewer", "role": "viewer"}).json()["secret"]
    with keep.process.client(headers={"authorization": f"Bearer {viewer}"}) as other:
        eventually(lambda: other.get("/v1/session").status_code == 200)
        assert other.post("/v1/uploads", params={"name": "b.mp4"}, content=b"x").status_code == 403
    actions = [record.value() or b"" for record in records(keep.kafka, "audit.v1")]
    assert [value for value in actions if b"recording.upload" in value and uri.encode() in value]


@each_store
def test_evidence_that_was_kept_before_a_new_history_is_shown(
    keep: Keep, request: pytest.FixtureRequest, tmp_path: Path, redis_url: str
) -> None:
    # alerts.v1 has lost it too: only what is kept knows the incident.
    path = keep.film(name_of(request))
    assert keep.client.post(f"{path}/keep").status_code == 200
    clip = keep.client.get(f"{path}/clip.mp4").content
    admin = AdminClient({"bootstrap.servers": keep.kafka})
    partitions = admin.list_topics("alerts.v1", timeout=30).topics["alerts.v1"].partitions
    for future in admin.delete_records(
        [TopicPartition("alerts.v1", number, OFFSET_END) for number in partitions]
    ).values():
        future.result()
    keep.lose_footage()
    settings = {"keep_url": keep.process.settings["keep_url"]}
    with ExitStack() as stack:
        again = gateway(stack, tmp_path, keep.kafka, redis_url, settings)
        with again.signed_in() as client:
            assert client.get(path).status_code == 404
            assert client.get(f"{path}/clip.mp4").content == clip
