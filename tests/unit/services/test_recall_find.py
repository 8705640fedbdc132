"""A search at recall: real holders, Redis and gRPC; hits are those of asking every window."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import sqlalchemy
import torch
from PIL import Image
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.local import RedisServer
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.past.backtests import PastWindows
from lookout.past.chapters.directory_keys import chapters_key
from lookout.past.chapters.landmarks import CAMERAS, LandmarkReader, landmarks_key
from lookout.past.find import find
from lookout.past.find.client import picture, region, similar
from lookout.past.find.finding import Finder
from lookout.past.find.pictures import PictureEncoder
from lookout.past.find.spans import ranked_spans
from lookout.past.find.types import FindEvent, FindQuestion, Hit
from lookout.past.memory.ranking import CameraPast, Landmarks
from lookout.runtime.net import GrpcServer
from lookout.runtime.observe import Metrics
from lookout.runtime.worker import load_settings
from lookout.services.gateway.console_files import BUILT
from lookout.services.gateway.history import tables
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.principal import Principal
from lookout.services.recall.asking import Asker
from lookout.services.recall.searching import FleetMemory
from lookout.services.recall.servicer import RecallService
from lookout.services.recall.settings import RecallSettings
from lookout.v1 import memory_pb2_grpc
from lookout.v1.access_pb2 import Role
from lookout.v1.memory_pb2 import FindHit, FindRequest, FindResponse, FindSummary, PictureRegion
from tests import chapters_world
from tests.browser import CHROMIUM
from tests.eventually import eventually
from tests.find_world import (
    START_US,
    Spec,
    World,
    WorldRecords,
    digest,
    engine,
    moments,
    past_windows,
    pictures_of,
    settings as find_settings,
    tower,
)
from tests.fleet.console_case import choose, console, fill, press, show, text
from tests.unit.services.test_gateway_serving import cookie, served

pytestmark = pytest.mark.slow

LYING = DEMO_QUESTIONS["lying"]
ENTRY_MS = 600_000
WARD = Spec("ward", "room", 5, 2, {1: "lying"})


class Service:
    """One recall over the chapters of two cameras: somebody falls in front of `ward`."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.world = World(root / "chapters")
        stack.callback(self.world.folder.close)
        self.world.film(WARD)
        self.world.film(Spec("yard", "carpark", 6, 1, {}))
        self.redis = stack.enter_context(RedisServer())
        self.holders = holders = chapters_world.World(root, self.redis.url, stack)
        self.holder = holders.hold(self.world.folder)
        self.client = holders.client()
        self.landmarks = LandmarkReader(holders.directory(), holders.client(), digest())
        self.asker = Asker(engine(), holders.sources(), model_digest=digest())
        self.records = WorldRecords(self.world)
        self.pictures = PictureEncoder(tower, find_settings())
        stack.callback(self.pictures.close)
        self.address = f"127.0.0.1:{self.serve(stack).port}"

    def serve(self, stack: ExitStack, kind: type[Finder] = Finder, **more: Any) -> GrpcServer:
        """A recall of its own over the same chapters; `kind`: what searches, `more`: what it has besides."""

        @contextmanager
        def finder() -> Iterator[Finder]:
            memory = FleetMemory(self.asker, self.landmarks)
            own = {"encode": self.pictures.block, **more}
            yield kind(memory, self.records, past_windows(self.world), **own)

        settings = load_settings(RecallSettings, {}, mode="local", instance="recall-0", model_dir=TINY)
        service = RecallService(self.asker, settings, Metrics("recall"), finder)
        server = GrpcServer("127.0.0.1", 0)
        server.add(service.register, service.NAME)
        server.start()
        stack.callback(server.stop, 0)
        return server

    def find(self, **request: Any) -> list[FindResponse]:
        """All messages of a search."""
        with grpc.insecure_channel(self.address) as channel:
            stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
            return list(stub.Find(FindRequest(**{"question": LYING, **request}), timeout=300.0))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with ExitStack() as stack:
        yield Service(tmp_path_factory.mktemp("find"), stack)


def hits_of(messages: list[FindResponse]) -> list[FindHit]:
    hits: dict[int, FindHit] = {}
    for message in messages:
        if message.HasField("hit"):
            hits = {number: hit for number, hit in hits.items() if number not in message.hit.merged}
            hits[message.hit.number] = message.hit
    return list(hits.values())


def summary_of(messages: list[FindResponse]) -> FindSummary:
    assert messages[-1].HasField("summary")
    return messages[-1].summary


def check_hits(service: Service, messages: list[FindResponse]) -> None:
    """Every moment of the truth is one hit, with the truth's p(yes)."""
    hits = hits_of(messages)
    p_yes = service.world.cameras["ward"].p_yes["lying"]
    assert len(hits) == len(moments(p_yes))
    for hit in hits:
        assert hit.verdict.camera == "ward"
        assert hit.verdict.p_yes == pytest.approx(p_yes[hit.verdict.window], abs=1e-4)


@pytest.mark.long
def test_hits_are_those_of_asking_every_window(service: Service) -> None:
    messages = service.find()
    check_hits(service, messages)
    assert all(hit.proposed >= 0.5 for hit in hits_of(messages))
    found = summary_of(messages)
    assert (found.cameras, list(found.hits)) == (2, [hit.number for hit in hits_of(messages)])
    assert found.cost.windows_total == 90
    assert found.ended in ("done", "budget")
    assert messages[0].progress.stage == "rank"
    assert not summary_of(service.find(cameras=["yard"])).hits


def test_redis_ranks_chapters_that_grow(service: Service) -> None:
    assert not any(facts.sealed for facts in service.world.folder.chapters())
    pasts = service.landmarks.pasts(["*"]).cameras
    assert sorted(pasts) == ["ward", "yard"]
    assert all(past.landmarks for past in pasts.values())
    other = LandmarkReader(service.holders.directory(), service.holders.client(), "another model")
    assert not any(past.landmarks for past in other.pasts(["*"]).cameras.values())
    (stored,) = service.client.hvals(landmarks_key("ward"))  # type: ignore[misc]
    marks = Landmarks.unpacked(stored, "ward")
    wider = replace(marks, keys=np.concatenate([marks.keys, marks.keys], 2))
    service.client.hset(landmarks_key("ward"), "made-up@1", b"nothing of ours")
    service.client.hset(landmarks_key("ward"), "wider@1", wider.packed())
    assert len(service.landmarks.pasts(["ward"]).cameras["ward"].landmarks) == 1
    service.client.hdel(landmarks_key("ward"), "made-up@1", "wider@1")


def test_a_day_of_chapters_is_read_as_one_and_ranked_as_by_all_their_keys(service: Service) -> None:
    """Also after chapters came and went, and once there are enough of them for another space."""
    draw = np.random.default_rng(0)
    reader = LandmarkReader(service.holders.directory(), service.holders.client(), "m")
    turned = np.linalg.qr(draw.normal(size=(64, 64)))[0][:8].astype(np.float32)
    stored: dict[str, Landmarks] = {}
    query = torch.from_numpy(draw.normal(size=(6, 64)).astype(np.float32))

    def check() -> None:
        pasts, space = (remembered := reader.pasts(["lot"])).cameras, remembered.space
        assert space is not None
        assert len(pasts["lot"].landmarks) == 2
        expected = ranked_spans({"lot": CameraPast([(0, 1 << 20)], [*stored.values()])}, query, 10)
        assert sum(map(len, pasts["lot"].landmarks)) == sum(map(len, stored.values()))
        ranked = ranked_spans(pasts, space.queries(query), 10)
        # Keys have half precision, so near the middle neighbours may change places.
        assert ranked.part(0, 5) == expected.part(0, 5)

    for chapters in (range(6), range(1, 40), range(20, 60)):
        for number in chapters:
            keys = (draw.normal(size=(2, 30, 8)) @ turned).astype(np.float16)
            begin = 1000 * number + np.arange(30) * 10
            count = np.full(30, 5)
            marks = Landmarks(keys, np.array([3, 5]), begin, begin + 5, count, 1, "m")
            stored.setdefault(f"{number:02}@1", marks)
        stored = {name: marks for name, marks in stored.items() if int(name[:2]) in chapters}
        service.client.delete(landmarks_key("lot"), chapters_key("lot"))
        service.client.hset(
            landmarks_key("lot"), mapping={name: own.packed() for name, own in stored.items()}
        )
        facts = json.dumps({"pod": "here", "begin_us": 0, "end_us": 1 << 20})
        service.client.hset(chapters_key("lot"), "all", facts)
        service.client.zadd(CAMERAS, {"lot": 1.0})
        check()
    service.client.delete(landmarks_key("lot"), chapters_key("lot"))
    service.client.zrem(CAMERAS, "lot")


def test_redis_is_not_needed(service: Service) -> None:
    service.client.flushall()
    check_hits(service, service.find(cameras=["ward"]))


def test_what_cannot_be_searched_is_refused_by_name(service: Service) -> None:
    for request, words in (
        ({"question": " "}, "the question is empty"),
        ({"cameras": ["yard\0"]}, "cameras: give printable ids"),
        ({"since_us": 5, "until_us": 5}, "the requested time is empty"),
        ({"threshold": 1.5}, "threshold and share"),
        ({"share": 0.0}, "threshold and share"),
        ({"limit": 1001}, "limit must be at most 1000"),
        ({"question": "Is anyone dancing?"}, "was not trained for 'Is anyone dancing"),
        ({"question": "Лежит ли кто-нибудь на полу?"}, "answers only yes/no questions"),
        ({"question": "Is anyone lying " + 10_000 * "down" + "?"}, "the limit is"),
    ):
        with pytest.raises(grpc.RpcError, match=words) as refused:
            service.find(**request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_time_to_come_has_nothing_and_nothing_of_it_is_left_out(service: Service) -> None:
    since = datetime.now(UTC) + timedelta(days=400)
    found = summary_of(service.find(cameras=["ward"], since_us=round(since.timestamp() * 1e6)))
    assert (list(found.hits), found.cost.windows_total, list(found.not_searched)) == ([], 0, [])


@pytest.mark.long
def test_two_searches_at_once_find_the_same(service: Service) -> None:
    with ThreadPoolExecutor(2) as pool:
        for messages in pool.map(lambda _: service.find(cameras=["ward"]), range(2)):
            check_hits(service, messages)


def test_an_untrained_question_is_asked_anyway(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKOUT_RECALL", service.address)
    odd = ["find", "Is anyone dancing?", "-c", "ward", "--until", "2020-01-01"]
    refused = CliRunner().invoke(app, odd)
    assert refused.exit_code != 0
    assert "(--anyway, in Python anyway=True)" in str(refused.exception)
    assert CliRunner().invoke(app, [*odd, "--anyway"]).exit_code == 0


@dataclass(frozen=True)
class Dying(Finder):
    """Loses its server after the first hit; `end` stops it."""

    end: Callable[[], object] = print

    def find(
        self, question: FindQuestion, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[FindEvent]:
        """As ever, to the first hit."""
        for event in super().find(question, cancelled):
            yield event
            if isinstance(event, Hit):
                threading.Timer(1.0, self.end).start()  # the hit is on its way by then
                eventually(cancelled)
                return


def test_a_recall_that_is_killed_leaves_its_hits_and_says_what_is_missing(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        servers: list[GrpcServer] = []
        servers += [service.serve(stack, Dying, end=lambda: servers[0].stop(0))]
        monkeypatch.setenv("LOOKOUT_RECALL", f"127.0.0.1:{servers[0].port}")
        ended = CliRunner().invoke(app, ["find", LYING, "--camera", "ward"])
        assert ended.exit_code != 0
        assert " ward\n" in ended.stdout  # the hit
        assert "The hits above are valid, but the rest was not searched" in str(ended.exception)
    with ExitStack() as stack:
        again: list[GrpcServer] = []
        again += [service.serve(stack, Dying, end=lambda: again[0].stop(0))]
        with served(tmp_path, recall=f"127.0.0.1:{again[0].port}") as (port, parts):
            events = gateway_events(port, cookie(parts), question=LYING, camera="ward")
            assert [kind for kind, _ in events][-2:] == ["hit", "problem"]
            assert "the rest was not searched" in events[-1][1]["detail"]


@dataclass(frozen=True)
class Watched(Finder):
    """Waits in its first window until the caller has left; counts the windows."""

    computed: list[int] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    def find(
        self, question: FindQuestion, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[FindEvent]:
        """As ever."""
        asked, computed = PastWindows.verdicts, self.computed

        class Counted(PastWindows):
            """Counts, and waits."""

            __slots__ = ()

            def verdicts(self, *arguments: Any) -> Any:
                for past in asked(self, *arguments):
                    computed.append(past.verdict.window)
                    eventually(cancelled)
                    yield past

        own = self.windows
        counted = Counted(own.settings, own.engine, own.planner, own.load, own.model_digest)
        try:
            yield from Finder(self.memory, self.records, counted).find(question, cancelled)
        finally:
            self.left.set()


def test_no_window_is_computed_after_the_caller_left(service: Service) -> None:
    computed: list[int] = []
    left = threading.Event()
    with ExitStack() as stack:
        server = service.serve(stack, Watched, computed=computed, left=left)
        search = find(LYING, recall=f"127.0.0.1:{server.port}")
        while next(search).progress.stage != "verify":
            pass
        eventually(lambda: computed)
        search.close()
        assert left.wait(60.0)
    assert len(computed) == 1


def test_a_caller_that_leaves_ends_the_search(service: Service) -> None:
    search = find(LYING, recall=service.address)
    assert next(search).progress.stage == "rank"
    search.close()
    check_hits(service, service.find(cameras=["ward"]))  # there is room for the next one


def test_the_command_prints_hits_and_what_was_searched(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOKOUT_RECALL", service.address)
    shown = CliRunner().invoke(app, ["find", LYING, "--camera", "ward"])
    assert shown.exit_code == 0, shown.output
    assert "p(yes)" in shown.stdout
    assert "of asking every window" in shown.stdout
    lines = CliRunner().invoke(app, ["find", LYING, "-c", "ward", "--json"]).stdout.splitlines()
    *hits, last = [json.loads(line) for line in lines]
    assert {hit["hit"]["verdict"]["camera"] for hit in hits} == {"ward"}
    assert last["summary"]["cost"]["share"] > 0


SEEN = datetime.fromtimestamp((START_US + 90_000_000) / 1e6, UTC)
"""When somebody lies in front of `ward`."""


def test_what_looks_like_a_picture_is_ranked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    like = region("ward", SEEN, [(0, 0), (1, 0), (1, 1), (0, 1)])
    assert "nothing to compare with" in similar(like, "unknown", recall=service.address).note
    assert service.holder.announcer is not None
    service.holder.announcer.announce()
    found = similar(like, recall=service.address).spans
    assert found
    assert [span.score for span in found] == sorted((span.score for span in found), reverse=True)
    assert not any(span.camera == "ward" and span.begin_us <= like.time_us < span.end_us for span in found)
    assert {span.camera for span in similar(like, "yard", recall=service.address).spans} <= {"yard"}
    check_hits(service, service.find(cameras=["ward"], like=like, share=1.0))
    monkeypatch.setenv("LOOKOUT_RECALL", service.address)
    words = ["find", "--like", "ward", "--at", SEEN.isoformat()]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "times look like it" in shown.stdout
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["spans"]


def test_a_picture_that_cannot_be_looked_for_is_refused_by_name(service: Service) -> None:
    corner = [(0.0, 0.0), (1e-6, 0.0), (1e-6, 1e-6)]
    for like, code, words in (
        (region("ward", SEEN, corner[:2]), "INVALID_ARGUMENT", "a polygon needs at least 3 points"),
        (region("ward", SEEN, [(0, 0), (2, 0), (1, 1)]), "INVALID_ARGUMENT", "between 0 and 1"),
        (region("*", SEEN), "INVALID_ARGUMENT", "give the id of one camera"),
        (region("ward", SEEN, corner), "NOT_FOUND", "pruning kept no token in the region"),
        (region("ward", SEEN - timedelta(days=9)), "NOT_FOUND", "no pictures of camera ward at that time"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            similar(like, recall=service.address)
        error: Any = caught.value
        assert (error.code().name, words in error.details()) == (code, True), error.details()


def photograph() -> bytes:
    """What `ward` shows when somebody lies in front of it, as a JPEG of somebody's own."""
    after_us = SEEN.timestamp() * 1e6 - START_US
    frame = next(frame for frame in pictures_of(WARD) if frame.time_us >= after_us)
    file = io.BytesIO()
    Image.fromarray(frame.sample.pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.mark.long
def test_a_picture_of_ones_own_finds_the_camera_that_shows_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.holder.announcer is not None
    service.holder.announcer.announce()
    own = picture(photograph())
    spans = similar(own, recall=service.address).spans
    seen_us = int(SEEN.timestamp() * 1e6)
    assert spans[0].camera == "ward"
    assert any(abs(span.begin_us - seen_us) <= 60_000_000 for span in spans[:3])
    left = picture(photograph(), [(0, 0), (0.5, 0), (0.5, 1), (0, 1)])
    assert [span.score for span in similar(left, recall=service.address).spans] != [s.score for s in spans]
    check_hits(service, service.find(cameras=["ward"], like=own, share=1.0))
    monkeypatch.setenv("LOOKOUT_RECALL", service.address)
    file = tmp_path / "own.jpg"
    file.write_bytes(photograph())
    shown = CliRunner().invoke(app, ["find", "--picture", str(file)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].endswith("ward")
    asked = CliRunner().invoke(app, ["find", LYING, "--camera", "ward", "--picture", str(file)])
    assert asked.exit_code == 0, asked.output
    assert " ward\n" in asked.stdout


def test_a_picture_of_ones_own_that_is_none_is_refused_by_name(service: Service, tmp_path: Path) -> None:
    both = PictureRegion(camera="ward", time_us=1, picture=photograph())
    for like, words in (
        (picture(b"\x89PNG not a JPEG"), "must be a JPEG of at most 1 MiB"),
        (picture(photograph()[:200]), "cannot be decoded"),
        (both, "a picture, or a camera and a time, not both"),
        (picture(photograph(), [(0.0, 0.0), (1e-6, 0.0), (1e-6, 1e-6)]), "too small to contain a token"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            similar(like, recall=service.address)
        assert words in caught.value.details()
    large = tmp_path / "large.jpg"
    large.write_bytes(photograph() + bytes(1 << 20))
    for words, reason in (
        (["--picture", str(tmp_path / "none.jpg")], "none.jpg: No such file"),
        (["--picture", str(tmp_path)], "Is a directory"),
        (["--picture", str(large)], "give a JPEG of 1 MiB at most"),
        (["--picture", str(large), "--like", "ward"], "not both"),
    ):
        assert reason in str(CliRunner().invoke(app, ["find", *words]).exception)


@pytest.mark.long
def test_the_gateway_looks_for_a_picture_of_ones_own(service: Service, tmp_path: Path) -> None:
    with served(tmp_path, recall=service.address) as (port, parts):
        address, headers = f"http://127.0.0.1:{port}/v1/find/similar", cookie(parts)
        see(parts, "ward", "yard")
        session = httpx.get(f"http://127.0.0.1:{port}/v1/session", headers=headers, timeout=60.0).json()
        headers |= {"x-csrf-token": session["csrf"], "content-type": "image/jpeg"}
        query = {"zone": "0,0 1,0 1,1 0,1"}
        jpeg = photograph()
        found = httpx.post(address, params=query, headers=headers, content=jpeg, timeout=60.0)
        assert found.status_code == 200, found.text
        assert found.json()["spans"][0]["camera"] == "ward"
        for change, more, content, status, words in (
            ({"like": "ward"}, {}, jpeg, 400, "must not be given together"),
            ({}, {}, b"", 400, "the body is empty"),
            ({}, {"content-type": "image/png"}, jpeg, 415, "image/jpeg"),
            ({}, {"x-csrf-token": "other"}, jpeg, 403, "x-csrf-token"),
            ({}, {}, jpeg[:200], 400, "cannot be decoded"),
            ({}, {}, jpeg + bytes(1 << 20), 413, "the body has more than"),
        ):
            given = {"params": {**query, **change}, "headers": {**headers, **more}, "content": content}
            answer = httpx.post(address, timeout=60.0, **given)
            assert (answer.status_code, words in answer.text) == (status, True), answer.text
        empty = httpx.get(address, headers=headers, timeout=60.0)
        assert (empty.status_code, "or POST a JPEG" in empty.text) == (400, True)
        search = {"question": LYING, "camera": "ward"}
        events = httpx.post(
            f"http://127.0.0.1:{port}/v1/find", params=search, headers=headers, content=jpeg, timeout=300.0
        )
        assert "event: hit" in events.text
        assert events.text.strip().split("\n\n")[-1].startswith("event: summary")


@pytest.mark.long
def test_the_gateway_looks_for_a_part_of_a_picture(service: Service, tmp_path: Path) -> None:
    with served(tmp_path, recall=service.address) as (port, parts):
        address, headers = f"http://127.0.0.1:{port}/v1/find/similar", cookie(parts)
        see(parts, "ward", "yard")
        query = {"like": "ward", "at": SEEN.isoformat(), "zone": "0,0 1,0 1,1 0,1"}
        found = httpx.get(address, params=query, headers=headers, timeout=60.0)
        assert found.status_code == 200, found.text
        for change, status, words in (
            ({"at": None}, 400, "give the time of the picture"),
            ({"zone": "0,0 1,1"}, 400, "at least three corners"),
            ({"like": "unknown"}, 404, "camera unknown does not exist"),
            ({"at": "2001-01-01T00:00:00Z"}, 404, "no pictures of camera ward at that time"),
        ):
            asked = {name: value for name, value in {**query, **change}.items() if value is not None}
            answer = httpx.get(address, params=asked, headers=headers, timeout=60.0)
            assert (answer.status_code, words in answer.text) == (status, True), answer.text
        events = gateway_events(port, headers, question=LYING, camera="ward", **query)
        assert [kind for kind, _ in events if kind == "hit"]


def see(parts: Parts, *cameras: str) -> None:
    """The gateway's history knows cameras."""
    with parts.database.writing() as connection:
        rows = [
            {"tenant": "default", "id": name, "seen_ms": 1, "outcome": "answered", "decided_ms": 1}
            for name in cameras
        ]
        connection.execute(sqlalchemy.insert(tables.CAMERAS), rows)


def gateway_events(port: int, headers: dict[str, str], **query: str) -> list[tuple[str, Any]]:
    """The events of a search over the gateway."""
    answer = httpx.get(f"http://127.0.0.1:{port}/v1/find", params=query, headers=headers, timeout=300.0)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for event in answer.text.strip().split("\n\n"):
        kind, _, data = event.partition("\ndata: ")
        events.append((kind.removeprefix("event: "), json.loads(data)))
    return events


def test_the_gateway_streams_a_search(service: Service, tmp_path: Path) -> None:
    with served(tmp_path, recall=service.address) as (port, parts):
        events = gateway_events(port, cookie(parts), question=LYING, camera="ward")
        kinds = [kind for kind, _ in events]
        assert (kinds[0], kinds[-1]) == ("progress", "summary")
        p_yes = service.world.cameras["ward"].p_yes["lying"]
        found = [own for kind, own in events if kind == "hit"]
        hit = found[-1]
        assert {own["number"] for own in found} == {hit["number"]}
        assert hit["verdict"]["p_yes"] == pytest.approx(p_yes[int(hit["verdict"]["window"])], abs=1e-4)
        assert parts.followers.begin("ada")  # its place is free again
        turned = {"question": LYING, "since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
        answer = httpx.get(
            f"http://127.0.0.1:{port}/v1/find", params=turned, headers=cookie(parts), timeout=60.0
        )
        assert (answer.status_code, answer.json()["detail"]) == (400, "since: must be before until")
        refused = gateway_events(port, cookie(parts), question=LYING, camera="ward", until="1971-01-01")
        assert refused[-1][0] == "summary"
        assert "hits" not in refused[-1][1]
        limited = parts.sessions.begin(Principal("bea", Role.ROLE_VIEWER, cameras=("yard",)))
        headers = {"cookie": f"lookout-session={limited}"}
        query = {"question": LYING, "camera": "ward"}
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/find", params=query, headers=headers, timeout=60.0)
        assert answer.status_code == 404
        assert answer.json()["detail"].startswith("camera ward does not exist, or you may not see it")


def test_the_gateway_refuses_a_limit_out_of_its_range(service: Service, tmp_path: Path) -> None:
    with served(tmp_path, recall=service.address) as (port, parts):
        address, query = f"http://127.0.0.1:{port}/v1/find", {"question": LYING, "until": "1971-01-01"}
        for limit in ("0", "-1", "1001", "1" + 400 * "0", "many", ""):
            asked = {**query, "limit": limit}
            answer = httpx.get(address, params=asked, headers=cookie(parts), timeout=60.0)
            assert answer.status_code == 422, (limit, answer.text)
            assert answer.json()["detail"].startswith("query.limit: "), answer.text
        events = gateway_events(port, cookie(parts), **query, limit="1000")
        assert events[-1][0] == "summary"


@pytest.mark.long
@pytest.mark.skipif(
    CHROMIUM is None or not (BUILT / "index.html").exists(), reason="no Chromium, or the console is not built"
)
def test_the_console_shows_hits_and_makes_a_watch_of_one(service: Service, tmp_path: Path) -> None:
    with served(tmp_path, recall=service.address) as (port, parts), httpx.Client() as client:
        client.cookies.set("lookout-session", cookie(parts)["cookie"].partition("=")[2])
        see(parts, "ward")
        place = SimpleNamespace(url=f"http://127.0.0.1:{port}")
        with console(place, client, tmp_path / "profile") as page:
            show(page, "find?within=&camera=ward")
            fill(page, "Question", LYING)
            press(page, "Search")
            eventually(lambda: "searched." in text(page))
            p_yes = service.world.cameras["ward"].p_yes["lying"]
            assert page.evaluate("document.querySelectorAll('.hits li').length") == len(moments(p_yes))
            assert f"{100 * max(p_yes.values()):.0f} %" in text(page)
            assert "1 camera searched." in text(page)
            fill(page, "Question", "")
            show(page, f"find?within=&camera=ward&like=ward&at={SEEN.isoformat().replace('+00:00', 'Z')}")
            eventually(lambda: "Looks like this picture of ward" in text(page))
            press(page, "Search")
            eventually(lambda: "Similar moments" in text(page))
            press(page, "Search without a picture")
            (tmp_path / "own.jpg").write_bytes(photograph())
            choose(page, tmp_path / "own.jpg")
            eventually(lambda: "Looks like your picture" in text(page))
            press(page, "Search")
            eventually(lambda: "Similar moments" in text(page))
            press(page, "Search without a picture")
            fill(page, "Question", LYING)
            press(page, "Search")
            eventually(lambda: "searched." in text(page))
            press(page, "Make this a watch")
            eventually(lambda: page.evaluate("location.hash").startswith("#/watch?question="))
            assert page.evaluate("faults") == []


def test_a_gateway_without_recall_says_what_to_set(tmp_path: Path) -> None:
    with served(tmp_path) as (port, parts):
        address = f"http://127.0.0.1:{port}/v1/find"
        answer = httpx.get(address, params={"question": LYING}, headers=cookie(parts), timeout=60.0)
        assert answer.status_code == 404
        assert "LOOKOUT_RECALL" in answer.json()["detail"]


@pytest.mark.long
def test_a_search_without_redis_finds_the_same(service: Service) -> None:
    with grpc.insecure_channel(service.address) as channel:
        stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Find(FindRequest(question=LYING, cameras=["ward"], share=1.0), timeout=300.0)
        messages = [next(call)]
        service.redis.stop()
        messages += call
    check_hits(service, messages)
    messages = service.find(cameras=["ward"], share=1.0)
    reasons = [entry.reason for entry in summary_of(messages).not_searched]
    service.redis.start()
    check_hits(service, messages)  # walked: no holder is known without Redis
    assert any("spans were searched newest first instead of by rank" in reason for reason in reasons), reasons


@pytest.mark.long
def test_erasing_removes_landmarks_and_a_lost_holder_is_named(service: Service) -> None:
    announcer = service.holder.announcer
    assert announcer is not None
    announcer.announce()
    assert service.client.hlen(landmarks_key("ward")) == 1
    announcer.erase("ward")
    # The folder still has it, so it is announced again; what others had written is gone.
    assert service.client.hlen(landmarks_key("ward")) == 1
    assert {name.decode() for name in service.client.zrange(CAMERAS, 0, -1)} == {"ward", "yard"}
    with grpc.insecure_channel(service.address) as channel:
        stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Find(FindRequest(question=LYING, share=1.0), timeout=300.0)
        messages = [next(call)]
        service.holder.kill()
        messages += call
    check_hits(service, messages)  # what no holder has is walked
    assert summary_of(messages).asked < summary_of(messages).ranked
    few = summary_of(service.find(cameras=["ward"], limit=1))
    assert "ward" in " ".join(entry.reason for entry in few.not_searched)
    assert few.asked == 0
