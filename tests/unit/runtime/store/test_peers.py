"""Tensors between stores, over real gRPC on the loopback."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from lookout.errors import DeviceFailedError, TransientError
from lookout.local import RedisServer
from lookout.runtime.net import GrpcServer
from lookout.runtime.store import (
    LineageBrokenError,
    Node,
    Peers,
    StoreSettings,
    TensorClient,
    TensorCorruptError,
    TensorNotMadeError,
    TensorService,
    TensorStore,
    TensorUnavailableError,
)
from lookout.v1 import tensors_pb2_grpc
from lookout.v1.frames_pb2 import Frame, FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES, STAGE_TOKENS, RecordRef, TensorRef
from lookout.v1.tensors_pb2 import GetTensorRequest, GetTensorResponse, RowRange, TensorHeader
from lookout.v1.tokens_pb2 import TokensRecord

from .conftest import Fleet, data, ref

RECORD = FramesRecord(camera="cam{1}")


def record_of(wanted: TensorRef) -> FramesRecord:
    """The record that carries a reference."""
    record = FramesRecord(camera=wanted.camera)
    record.segment.segment.CopyFrom(wanted.input)
    record.segment.pixels.CopyFrom(wanted)
    record.segment.frames.extend(Frame() for _ in range(wanted.shape[0] if wanted.shape else 0))
    return record


def test_a_tensor_of_many_chunks_and_its_rows(fleet: Fleet) -> None:
    pod, client = fleet.pod("a"), fleet.client()
    big = data(1, 700, 1000)
    filled = pod.store.put(ref("x"), big)
    whole = client.fetch(filled, RECORD)
    assert (whole.source, whole.degraded) == ("peer", False)
    assert not whole.array.flags.writeable
    np.testing.assert_array_equal(whole.array, big)
    some = client.fetch(filled, RECORD, [(690, 700), (3, 4), (0, 0)])
    np.testing.assert_array_equal(some.array, np.concatenate([big[690:], big[3:4]]))


@pytest.mark.parametrize("shape", [(0, 4), (3,), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "int64"])
def test_a_tensor_of_any_shape_and_dtype_arrives_equal(
    fleet: Fleet, shape: tuple[int, ...], dtype: str
) -> None:
    pod, peers = fleet.pod("a", lease=False), Peers(fleet.settings)
    sent = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    got = peers.get(pod.address, pod.store.put(ref("x"), sent))
    peers.close()
    assert got.dtype == sent.dtype
    np.testing.assert_array_equal(got, sent)


def test_rows_of_a_bfloat16_tensor_come_as_their_bits(fleet: Fleet) -> None:
    pod, client = fleet.pod("a"), fleet.client()
    bits = np.arange(12, dtype=np.uint16).reshape(4, 3)
    got = client.fetch(pod.store.put(ref("x"), bits, dtype="bfloat16"), RECORD, [(1, 3)])
    np.testing.assert_array_equal(got.array, bits[1:3])


def test_the_own_store_comes_first(fleet: Fleet) -> None:
    pod = fleet.pod("a")
    filled = pod.store.put(ref("x"), data(1))
    assert fleet.client(store=pod.store).fetch(filled, RECORD).source == "local"


def test_what_nobody_holds_is_made_by_a_replica(fleet: Fleet) -> None:
    pods, client = [fleet.pod("a"), fleet.pod("b")], fleet.client()
    made: list[str] = []

    def make(wanted: TensorRef, record: object) -> np.ndarray:
        assert record == record_of(ref("x"))
        made.append(wanted.id)
        return data(7)

    for pod in pods:
        pod.store.makes(STAGE_FRAMES, make)
    for _ in range(3):
        fetched = client.fetch(ref("x"), record_of(ref("x")))
        np.testing.assert_array_equal(fetched.array, data(7))
    assert made == ["x"]
    assert fetched.source == "peer"  # the one that made it says so


def test_tensors_of_a_backlog_are_asked_for_once_each(fleet: Fleet) -> None:
    """After a crash many threads want tensors that are gone, and their stage makes two at one time."""
    tensors, threads = 300, 32
    store, server = TensorStore(fleet.settings), GrpcServer("127.0.0.1", 0)
    fleet.stack.callback(server.stop)

    def make(wanted: TensorRef, record: object) -> np.ndarray:
        time.sleep(0.002)  # others arrive meanwhile
        return data(wanted.input.offset)

    store.makes(STAGE_FRAMES, make)
    server.add(TensorService(store).register, TensorService.NAME)
    server.start()
    peers = Peers(fleet.settings)
    fleet.stack.callback(peers.close)

    def catch_up(offset: int) -> int:
        """Retries until the tensor came, as a worker counts them."""
        wanted = ref(f"x{offset}", offset)
        for retries in itertools.count():
            try:
                array = peers.materialize(f"127.0.0.1:{server.port}", wanted, record_of(wanted))
            except TensorUnavailableError:
                continue
            np.testing.assert_array_equal(array, data(offset))
            return retries
        raise AssertionError("unreachable")

    with ThreadPoolExecutor(threads) as pool:
        retries = sum(pool.map(catch_up, range(tensors)))
    assert (retries, store.stats().materialized) == (0, tensors)


def test_evicted_between_directory_and_peer(fleet: Fleet) -> None:
    pod, client = fleet.pod("a"), fleet.client()
    pod.store.makes(STAGE_FRAMES, lambda wanted, record: data(1))
    filled = pod.store.put(ref("x"), data(1))
    pod.store.holdings = None  # the withdrawal is lost
    pod.store.drop(filled)
    fetched = client.fetch(filled, record_of(filled))
    assert fetched.source == "made"
    np.testing.assert_array_equal(fetched.array, data(1))


def test_a_dead_holder_costs_time_only(fleet: Fleet) -> None:
    holder, other, client = fleet.pod("a"), fleet.pod("b"), fleet.client()
    filled = holder.store.put(ref("x"), data(1))
    other.store.makes(STAGE_FRAMES, lambda wanted, record: data(1))
    holder.server.stop(0).wait()
    np.testing.assert_array_equal(client.fetch(filled, record_of(filled)).array, data(1))


def test_redis_down_is_degraded_and_right(fleet: Fleet, redis_server: RedisServer) -> None:
    pod, client = fleet.pod("a"), fleet.client()
    filled = pod.store.put(ref("x"), data(1))
    assert not client.fetch(filled, record_of(filled)).degraded
    pod.store.makes(STAGE_FRAMES, lambda wanted, record: data(9))
    client.fetch(ref("warm"), record_of(ref("warm")))  # the client knows the replicas now
    redis_server.kill()
    fetched = client.fetch(filled, record_of(filled))
    assert (fetched.source, fetched.degraded) == ("made", True)
    np.testing.assert_array_equal(fetched.array, data(1))  # held there: not made again
    assert pod.store.stats().materialized == 1
    fixed = fleet.client(replicas={STAGE_FRAMES: [pod.address]})  # never saw a directory
    assert fixed.fetch(filled, record_of(filled)).degraded


def test_lost_lineage_and_no_replicas_are_told_apart(fleet: Fleet) -> None:
    client = fleet.client()
    with pytest.raises(TensorUnavailableError, match="no instance of its stage"):
        client.fetch(ref("x"), record_of(ref("x")))
    pod = fleet.pod("a")
    with pytest.raises(TensorUnavailableError, match="UNIMPLEMENTED"):
        client.fetch(ref("x"), record_of(ref("x")))

    def gone(wanted: TensorRef, record: object) -> np.ndarray:
        raise LineageBrokenError("camera.segments.v1/0@0 is gone: its retention is over")

    pod.store.makes(STAGE_FRAMES, gone)
    with pytest.raises(LineageBrokenError, match="retention is over"):
        client.fetch(ref("x"), record_of(ref("x")))


@pytest.mark.parametrize(
    ("failure", "answered"),
    [
        (ValueError("the frame has no such plane"), True),
        (IndexError("row 7 of 4"), True),
        (TensorCorruptError("its pixels differ"), True),
        (TensorNotMadeError("its host does not answer"), True),
        (TensorUnavailableError("nobody has its pixels"), False),
        (TransientError("Kafka does not answer"), False),
        (OSError("the disk is full"), False),
        (DeviceFailedError("no memory left"), False),
    ],
)
def test_a_maker_that_cannot_make_one_tensor_is_told_from_one_that_can_make_none(
    fleet: Fleet, failure: Exception, answered: bool
) -> None:
    def fails(wanted: TensorRef, record: object) -> np.ndarray:
        raise failure

    fleet.pod("a").store.makes(STAGE_FRAMES, fails)
    with pytest.raises(TensorUnavailableError, match=str(failure)) as caught:
        fleet.client().fetch(ref("x"), record_of(ref("x")))
    assert isinstance(caught.value, TensorNotMadeError) == answered


def test_what_one_replica_cannot_make_does_not_wait_for_absent_ones(fleet: Fleet) -> None:
    def fails(wanted: TensorRef, record: object) -> np.ndarray:
        raise ValueError("the frame has no such plane")

    pod = fleet.pod("a", lease=False)
    pod.store.makes(STAGE_FRAMES, fails)
    client = TensorClient(Peers(fleet.settings), replicas={STAGE_FRAMES: ["127.0.0.1:1", pod.address]})
    with pytest.raises(TensorNotMadeError):
        client.fetch(ref("x"), record_of(ref("x")))


def test_tokens_are_made_from_tokens_records(fleet: Fleet) -> None:
    pod, client = fleet.pod("t", stage=STAGE_TOKENS), fleet.client()
    pod.store.makes(STAGE_TOKENS, lambda wanted, record: np.full((1, 2), len(record.camera), np.float32))  # type: ignore[attr-defined]
    wanted = TensorRef(id="t", stage=STAGE_TOKENS, camera="four")
    record = TokensRecord(camera="four")
    record.block.embeddings.CopyFrom(wanted)
    fetched = client.fetch(wanted, record)
    assert fetched.array.tolist() == [[4.0, 4.0]]


def test_a_row_that_is_asked_for_often_is_refused(fleet: Fleet) -> None:
    """A request of a megabyte names it a hundred thousand times; all of them would be copied first."""
    pod, peers = fleet.pod("a"), Peers(fleet.settings)
    filled = pod.store.put(ref("x"), data(1, 8))
    assert len(peers.get(pod.address, filled, [(0, 1), (4, 8)])) == 5
    with pytest.raises(
        IndexError, match="9 rows were requested of a tensor with 8 rows: ask for each row once"
    ):
        peers.get(pod.address, filled, [(0, 1)] * 9)
    request = GetTensorRequest(ref=filled, rows=[RowRange(start=0, stop=1)] * 9)
    with grpc.insecure_channel(pod.address) as channel, pytest.raises(grpc.RpcError) as refusal:
        list(tensors_pb2_grpc.TensorServiceStub(channel).GetTensor(request, timeout=30))
    assert refusal.value.code() is grpc.StatusCode.OUT_OF_RANGE


def test_rows_outside_are_refused(fleet: Fleet) -> None:
    pod, peers = fleet.pod("a"), Peers(fleet.settings)
    filled = pod.store.put(ref("x"), data(1, 8))
    with pytest.raises(IndexError, match="8 rows"):
        peers.get(pod.address, filled, [(7, 9)])
    with pytest.raises(TensorCorruptError, match="OUT_OF_RANGE"):
        peers.get(pod.address, ref("x"), [(7, 9)])  # a reference that does not know its shape
    peers.close()


def test_one_peer_gets_no_more_than_its_share(fleet_of: Callable[..., Fleet]) -> None:
    fleet = fleet_of(peer_bytes=6 << 20)
    pod = fleet.pod("a")
    big = np.random.default_rng(0).integers(0, 255, (4, 1 << 20), dtype=np.uint8)
    filled = pod.store.put(ref("x"), big)
    # A window that does not grow: else the whole tensor may fit into it, and the slow reader holds nothing.
    with grpc.insecure_channel(pod.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        stub = tensors_pb2_grpc.TensorServiceStub(channel)  # type: ignore[no-untyped-call]
        from lookout.v1.tensors_pb2 import GetTensorRequest

        slow = stub.GetTensor(GetTensorRequest(ref=filled), timeout=120)
        next(slow)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.GetTensor(GetTensorRequest(ref=filled), timeout=120))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sum(len(part.chunk) for part in slow) == big.nbytes
    peers = Peers(fleet.settings)  # waits for its turn instead
    out: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: out.append(peers.get(pod.address, filled))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peers.close()
    assert len(out) == 5
    assert all(np.array_equal(each, big) for each in out)


def test_many_readers_at_once(fleet: Fleet) -> None:
    pods, client = [fleet.pod("a"), fleet.pod("b")], fleet.client()
    refs = [pods[n % 2].store.put(ref(f"x{n}", n), data(n, 40)) for n in range(8)]

    def read(n: int) -> bool:
        fetched = client.fetch(refs[n % 8], RECORD, [(n % 8, 40)])
        return np.array_equal(fetched.array, data(n % 8, 40)[n % 8 :])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(60)))


class FakeLyingService(tensors_pb2_grpc.TensorServiceServicer):  # type: ignore[misc]
    """Sends what its `parts` say: a real store cannot be made to lie."""

    def __init__(self) -> None:
        self.parts: list[GetTensorResponse] = []

    def GetTensor(self, request: object, context: object) -> Iterator[GetTensorResponse]:
        yield from self.parts


@pytest.fixture
def liar() -> Iterator[tuple[FakeLyingService, str]]:
    service, server = FakeLyingService(), grpc.server(ThreadPoolExecutor(2))
    tensors_pb2_grpc.add_TensorServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(0).wait()


def _header(**changed: object) -> GetTensorResponse:
    facts = {"shape": [2, 2], "dtype": "uint8", "length": 4, "crc32c": 0x29308CF4} | changed
    return GetTensorResponse(header=TensorHeader(**facts))  # type: ignore[arg-type]


CHUNK = GetTensorResponse(chunk=b"\1\2\3\4")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([_header(crc32c=1), CHUNK], "checksum"),
        ([_header()], "0 of 4 bytes"),
        ([_header(), CHUNK, CHUNK], "more than the announced"),
        ([CHUNK], "no header"),
        ([], "no header"),
        ([_header(length=5), CHUNK], "5 bytes do not match"),
        ([_header(shape=[4, 1]), CHUNK], "shape"),
        ([_header(shape=[-2, -2]), CHUNK], "do not match"),
        ([_header(dtype="object"), CHUNK], "object"),
        ([_header(dtype="int8"), CHUNK], "sent int8"),
        ([_header(shape=[1 << 20, 1 << 20], length=1 << 40)], "tensor_bytes"),
    ],
)
def test_a_peer_that_sends_something_else_is_found_out(
    liar: tuple[FakeLyingService, str], parts: list[GetTensorResponse], says: str
) -> None:
    service, address = liar
    wanted = ref("x")
    wanted.shape.extend([2, 2])
    wanted.dtype, wanted.length = "uint8", 4
    service.parts = parts
    peers = Peers(StoreSettings())
    with pytest.raises(TensorCorruptError, match=says):
        peers.get(address, wanted)
    peers.close()


def test_a_lying_holder_is_passed_over(fleet: Fleet, liar: tuple[FakeLyingService, str]) -> None:
    service, address = liar
    honest = fleet.pod("b")
    honest.store.makes(STAGE_FRAMES, lambda wanted, record: data(1))
    filled = honest.store.put(ref("x"), data(1))
    honest.store.drop(filled)
    holder = fleet.pod("a", lease=False)
    holder.announcer.address = address
    holder.announcer.renew()
    holder.store.put(ref("x"), data(1))
    service.parts = [_header()]
    fetched = fleet.client().fetch(filled, record_of(filled))
    assert fetched.source == "made"
    np.testing.assert_array_equal(fetched.array, data(1))


def test_nodes_find_each_other(redis_url: str) -> None:
    settings = StoreSettings()
    holder, reader = Node(settings, redis_url), Node(settings, redis_url)
    server = grpc.server(ThreadPoolExecutor(2))
    holder.service.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    early = holder.store.put(ref("early", 1), data(1))
    holder.join(STAGE_FRAMES, "decode-0", f"127.0.0.1:{port}")
    late = holder.store.put(ref("late", 2), data(2))
    try:
        assert [reader.client.fetch(each, RECORD).source for each in (early, late)] == ["peer", "peer"]
        with pytest.raises(ValueError, match="already joined"):
            holder.join(STAGE_FRAMES, "decode-0", f"127.0.0.1:{port}")
        holder.close()
        assert reader.directory.find(late) == []
    finally:
        server.stop(0).wait()
        reader.close()


def test_a_stage_reads_no_other_topic_for_a_caller(fleet: Fleet) -> None:
    store = TensorStore(fleet.settings)
    store.makes(STAGE_FRAMES, lambda wanted, record: data(1))
    server = grpc.server(ThreadPoolExecutor(4))
    TensorService(store).register(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    peers = Peers(fleet.settings)

    def asked(topic: str, offset: int = 5, named: str = "x") -> TensorRef:
        record = FramesRecord(camera="cam{1}")
        record.segment.segment.CopyFrom(RecordRef(topic=topic, partition=0, offset=offset))
        record.segment.pixels.CopyFrom(ref(named))
        peers.materialize(address, ref("x"), record)
        return record.segment.pixels

    try:
        assert asked("camera.segments.v1")
        for topic, offset, named in (
            ("verdicts.v1", 5, "x"),
            ("camera.segments.v1", -1, "x"),
            ("camera.segments.v1", 5, "y"),
        ):
            store.drop(ref("x"))
            with pytest.raises(LineageBrokenError, match="INVALID_ARGUMENT"):
                asked(topic, offset, named)
    finally:
        peers.close()
        server.stop(0).wait()


def test_an_empty_tensor_may_end_after_another_of_the_same_holder() -> None:
    """Bytes on the way: empty begins, 10 begin and end, 5 begin, empty ends."""
    peers = Peers(StoreSettings())
    empty, other = peers._share("a:1", 0, 1.0), peers._share("a:1", 5, 1.0)
    empty.__enter__()
    with peers._share("a:1", 10, 1.0):
        pass
    empty.__exit__(None, None, None)
    empty = peers._share("a:1", 0, 1.0)
    empty.__enter__()
    other.__enter__()
    empty.__exit__(None, None, None)
    assert peers._on_the_way == {"a:1": 5}
    other.__exit__(None, None, None)
    assert peers._on_the_way == {}
    peers.close()
