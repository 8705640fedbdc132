"""A part whose pixels come from decode pods is answered as one that its worker decodes, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from lookout.local import RedisServer
from lookout.models.families import model_input
from lookout.recordings.analysis import Analyzer
from lookout.recordings.jobs import Sources
from lookout.recordings.jobs.samples import samples_ref
from lookout.runtime.store import (
    Announcer,
    Directory,
    Peers,
    StoreError,
    StoreSettings,
    TensorClient,
    TensorService,
    TensorStore,
)
from lookout.runtime.store.tensors import Array
from lookout.services.recordings.sampling import SamplesMaker
from lookout.v1.lineage_pb2 import STAGE_SAMPLES
from lookout.v1.recordings_pb2 import RecordingJob, RecordingPart, RecordingSettings
from lookout.wire import RECORDING_PARTS, from_bytes
from tests.unit.services.recordings_case import Services
from tests.unit.video.segments.clips import encode

pytestmark = pytest.mark.slow
QUESTIONS = ["Is anyone there?", "Is it dark?"]
SETTINGS = RecordingSettings(fps=5, part_frames=8, group_frames=3)


@pytest.fixture(scope="module", params=["whole", "damaged"])
def clip(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "clip.mp4"
    data = bytearray(encode("mp4", frames=60, speed=1))  # six seconds: four parts
    if request.param == "damaged":
        data[len(data) // 2 : len(data) // 2 + 400] = bytes(400)
    path.write_bytes(data)
    return path


@dataclass
class Pods:
    """Decode pods, served over gRPC."""

    client: TensorClient
    servers: list[grpc.Server]
    peers: Peers
    addresses: list[str]
    size: tuple[int, int]
    spoilt: bool = False

    def pixels(self, part: RecordingPart) -> Array | None:
        """As the service of parts gets them."""
        try:
            array = self.client.fetch(samples_ref(part, self.size), part).array
        except StoreError:
            return None
        return array[:-1] if self.spoilt else array


@pytest.fixture
def pods(analyzer: Analyzer, clip: Path) -> Iterator[Pods]:
    settings = StoreSettings()
    given = model_input(analyzer.folder)
    with ExitStack() as stack:
        servers, addresses = [], []
        for _ in range(2):
            maker = SamplesMaker(Sources([clip.parent]), (given.height, given.width), decoders=1)
            stack.callback(maker.close)
            store = TensorStore(settings)
            store.makes(STAGE_SAMPLES, maker.make)
            server = grpc.server(stack.enter_context(ThreadPoolExecutor(4)))
            TensorService(store).register(server)
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            stack.callback(lambda server=server: server.stop(0).wait())
            servers.append(server)
        peers = Peers(settings)
        stack.callback(peers.close)
        grid = analyzer.tower.grid
        client = TensorClient(peers, replicas={STAGE_SAMPLES: addresses})
        yield Pods(client, servers, peers, addresses, (grid.height, grid.width))


def answered(
    analyzer: Analyzer,
    clip: Path,
    pods: Pods | None,
    killed: int = 0,
    between: Callable[[], object] = lambda: None,
) -> tuple[list[bytes], int]:
    """The outcomes of a job's parts, and how many had pixels of a pod; pods die behind the first part."""
    services = Services(analyzer, clip.parent)
    services.parts_handler._ahead = None if pods is None else pods.pixels
    services.ask(RecordingJob(id="job", uris=[clip.as_uri()], questions=QUESTIONS, settings=SETTINGS))
    ahead, outcomes = 0, []
    for number, record in enumerate(services.topics.records[RECORDING_PARTS.name]):
        result = services.parts.handle(record)
        ahead += result.counts.get("ahead", 0)
        outcomes += [output.value or b"" for output in result.outputs]
        between()
        if number == 0 and pods is not None:
            for server in pods.servers[:killed]:
                server.stop(0).wait()
    services.parts_handler.close()
    return outcomes, ahead


@pytest.fixture(scope="module")
def expected(analyzer: Analyzer, clip: Path) -> list[bytes]:
    """The outcomes of a worker that decodes for itself."""
    outcomes, _ = answered(analyzer, clip, None)
    assert len(outcomes) == 4
    return outcomes


def test_pixels_of_decode_pods_give_the_same_outcomes(
    analyzer: Analyzer, clip: Path, pods: Pods, expected: list[bytes]
) -> None:
    assert answered(analyzer, clip, pods) == (expected, 4)


@pytest.mark.long
@pytest.mark.parametrize("killed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_decode_pod_changes_nothing(
    analyzer: Analyzer, clip: Path, pods: Pods, expected: list[bytes], killed: int
) -> None:
    outcomes, ahead = answered(analyzer, clip, pods, killed)
    # The other pod makes what is left; without one, the first part alone had its pixels from a pod.
    assert (outcomes, ahead) == (expected, {1: 4, 2: 1}[killed])


@pytest.mark.long
def test_a_redis_that_is_wiped_in_the_middle_of_a_job_changes_nothing(
    analyzer: Analyzer, clip: Path, pods: Pods, expected: list[bytes]
) -> None:
    """The worker knows decode pods by the directory alone; it remembers them, and they come back."""
    with RedisServer() as server, ExitStack() as stack:
        directory = Directory(server.url, StoreSettings())
        stack.callback(directory.close)
        for number, address in enumerate(pods.addresses):
            announcer = Announcer(directory, STAGE_SAMPLES, f"pod-{number}", address, list)
            announcer.start()
            stack.callback(announcer.stop)
        pods.client = TensorClient(pods.peers, directory)
        outcomes, ahead = answered(analyzer, clip, pods, between=directory.client.flushall)
    assert outcomes == expected
    assert ahead == 4


@pytest.mark.long
def test_pixels_that_are_not_the_parts_are_decoded_here(
    analyzer: Analyzer, clip: Path, pods: Pods, expected: list[bytes]
) -> None:
    pods.spoilt = True
    assert answered(analyzer, clip, pods)[0] == expected


def test_a_pod_makes_nothing_but_the_parts_own_pixels(analyzer: Analyzer, clip: Path, pods: Pods) -> None:
    services = Services(analyzer, clip.parent)
    services.ask(RecordingJob(id="job", uris=[clip.as_uri()], questions=QUESTIONS, settings=SETTINGS))
    part = from_bytes(services.topics.records[RECORDING_PARTS.name][0].value, RecordingPart)
    with pytest.raises(StoreError, match="another model's input size"):
        pods.client.fetch(samples_ref(part, (28, 28)), part)
    for wrong, why in (("file:///etc/passwd", "not in a folder"), ("file:///nowhere.mp4", "not in a folder")):
        part.uri = wrong
        with pytest.raises(StoreError, match=why):
            pods.client.fetch(samples_ref(part, pods.size), part)
