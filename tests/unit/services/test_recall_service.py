"""RecallService over real gRPC, and `lookout ask --fleet` against it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.past.find.finding import Finder
from lookout.past.memory import HistoryError, MemorySettings, Past
from lookout.runtime.net import GrpcServer
from lookout.runtime.observe import Metrics
from lookout.runtime.worker import load_settings
from lookout.services.recall import servicer
from lookout.services.recall.asking import Asked, Asker, NothingRememberedError, PastQuestion
from lookout.services.recall.servicer import RecallService
from lookout.services.recall.settings import RecallSettings
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import AskRequest, AskResponse
from tests.chapters_world import SMALL, WALL_US, World, engine, fill, folder

CAMERAS = ("gate", "yard-1", "yard-2", "yard-[3]")
YES_NO, TEXT = "Is anyone lying?", "What happened?"


@contextmanager
def nothing_to_find() -> Iterator[Finder]:
    """Searches are tested elsewhere."""
    raise AssertionError("nobody searches here")
    yield


class Service:
    """One recall over the chapters of four cameras."""

    def __init__(
        self,
        root: Path,
        stack: ExitStack,
        *,
        memory: MemorySettings = SMALL,
        blocks: int = 6,
        **settings: object,
    ) -> None:
        chapters = folder(root / "chapters", memory=memory)
        for number, camera in enumerate(CAMERAS):
            fill(chapters, range(blocks), camera, seed=number)
            chapters.seal(camera)
        world = World(root, None, stack)
        self.holder = world.hold(chapters)
        self.asker = Asker(engine(), world.sources(directory=False), model_digest="m1")
        self.metrics = Metrics("recall")
        small = type("SmallRecallSettings", (RecallSettings,), {"best": 2, "words": 3, **settings})
        loaded: RecallSettings = load_settings(small, {}, mode="local", instance="recall-0")
        service = RecallService(self.asker, loaded, self.metrics, nothing_to_find)
        server = GrpcServer("127.0.0.1", 0)
        server.add(service.register, service.NAME)
        server.start()
        stack.callback(server.stop, 0)
        self.address = f"127.0.0.1:{server.port}"
        channel = stack.enter_context(grpc.insecure_channel(self.address))
        self.stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]

    def ask(self, question: str = YES_NO, cameras: str = "gate", **more: Any) -> list[AskResponse]:
        """All parts of an answer."""
        return list(self.stub.Ask(AskRequest(question=question, cameras=cameras, **more), timeout=60.0))

    def ended(self, end: str) -> float:
        """Questions that ended so."""
        value = self.metrics.registry.get_sample_value("lookout_recall_asks_total", {"end": end})
        return value or 0.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with ExitStack() as stack:
        yield Service(tmp_path, stack)


def refusal(service: Service, **request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        service.ask(**request)
    return refused.value.code(), refused.value.details()


def test_one_camera_gives_progress_an_answer_and_a_summary(service: Service) -> None:
    progress, answer, summary = service.ask()
    assert progress.progress.stage == "chapters"
    expected = service.asker.ask("gate", PastQuestion(YES_NO))
    assert answer.answer.p_yes == expected.answer.p_yes
    assert [(span.begin_us, span.end_us) for span in answer.answer.covered] == list(expected.covered)
    assert all(moment.time_us > WALL_US and moment.chapter for moment in answer.answer.moments)
    assert not answer.answer.HasField("text")
    assert (summary.summary.cameras, summary.summary.answered) == (1, 1)
    assert service.ended("answered") == 1


@pytest.mark.slow
def test_text_is_streamed_and_the_whole_of_it_stands_in_the_answer(service: Service) -> None:
    parts = service.ask(TEXT)
    pieces = [part.text.piece for part in parts if part.WhichOneof("part") == "text"]
    (answer,) = [part.answer for part in parts if part.WhichOneof("part") == "answer"]
    assert "".join(pieces) == answer.text
    assert not answer.HasField("p_yes")


@pytest.mark.slow
def test_a_pattern_ranks_cameras_and_says_which_had_a_small_budget(service: Service) -> None:
    parts = service.ask(cameras="yard-*")
    stages = [part.progress.stage for part in parts if part.WhichOneof("part") == "progress"]
    assert stages == ["chapters", *["cheap"] * 3, *["full"] * 2]
    answers = [part.answer for part in parts if part.WhichOneof("part") == "answer"]
    assert sorted(answer.camera for answer in answers) == ["yard-1", "yard-2", "yard-[3]"]
    assert [answer.cheap for answer in answers] == [False, False, True]
    for group in (answers[:2], answers[2:]):
        ranked = [answer.p_yes for answer in group]
        assert ranked == sorted(ranked, reverse=True)
    brief = {
        answer.camera: service.asker.ask(answer.camera, PastQuestion(YES_NO, frames=8)).answer.p_yes
        for answer in answers
    }
    assert min(brief, key=brief.__getitem__) == answers[2].camera
    assert (parts[-1].summary.cameras, parts[-1].summary.answered) == (3, 2)
    assert service.ask(cameras="yard-[*")[-1].summary.cameras == 1  # a bracket is itself


@pytest.mark.slow
def test_the_first_pass_reads_as_much_of_every_camera_whatever_its_clusters_hold(
    tmp_path: Path,
) -> None:
    """No cluster fits a budget of one frame: a part of one is read, and the answers differ."""
    large = replace(SMALL, cluster_tokens=256)
    with ExitStack() as stack:
        service = Service(tmp_path, stack, memory=large)
        question = PastQuestion(YES_NO, frames=1)
        asked = service.asker.ask_many(service.asker.find("*", question), question)
        assert set(asked) == set(CAMERAS)
        for answer in asked.values():
            assert isinstance(answer, Asked)
            assert answer.answer.evidence
            assert not answer.whole
            assert {trace.tokens for trace in answer.answer.traces} == {answer.budget}
        assert len({answer.answer.p_yes for answer in asked.values() if isinstance(answer, Asked)}) == 4


@pytest.mark.slow
def test_a_camera_that_a_few_frames_are_all_of_is_answered_in_full_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "CHEAP_FRAMES", 512)
    with ExitStack() as stack:
        service = Service(tmp_path, stack, best=1)
        parts = service.ask(cameras="yard-*")
        assert not [part for part in parts if part.progress.stage == "full"]
        answers = [part.answer for part in parts if part.WhichOneof("part") == "answer"]
        assert [answer.cheap for answer in answers] == [False] * 3
        assert parts[-1].summary.answered == 3
        ranked = [answer.p_yes for answer in answers]
        assert ranked == sorted(ranked, reverse=True)


@pytest.mark.slow
def test_a_camera_of_which_nothing_is_read_has_no_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = service.asker._past

    def reads_nothing(camera: str, *rest: Any) -> Past:
        out = past(camera, *rest)
        if camera == "yard-1":
            out.budget = 0
        return out

    monkeypatch.setattr(service.asker, "_past", reads_nothing)
    parts = service.ask(cameras="yard-*")
    answers = {part.answer.camera for part in parts if part.WhichOneof("part") == "answer"}
    assert answers == {"yard-2", "yard-[3]"}
    assert list(parts[-1].summary.not_asked) == [
        "camera yard-1: retrieval selected nothing in this time range: raise its budget"
    ]


@pytest.mark.slow
def test_cameras_that_are_asked_together_answer_as_alone(service: Service) -> None:
    """Up to rounding: products of more rows are summed in another order. What they read is the same."""
    question = PastQuestion(YES_NO, frames=8)
    past = service.asker.find("*", question)
    together = service.asker.ask_many(past, question)
    assert set(together) == set(CAMERAS)
    for camera, answer in together.items():
        alone = service.asker.ask(camera, question)
        assert isinstance(answer, Asked)
        assert answer.answer.p_yes == pytest.approx(alone.answer.p_yes, abs=1e-5)
        assert answer.answer.fetched == alone.answer.fetched
        assert answer.covered == alone.covered
        times = [evidence.time_us for evidence in answer.answer.evidence]
        assert times == [evidence.time_us for evidence in alone.answer.evidence]
    long_ago = service.asker.ask_many(past, PastQuestion(YES_NO, until_us=WALL_US - 1))
    assert all(isinstance(answer, NothingRememberedError) for answer in long_ago.values())


@pytest.mark.slow
def test_a_camera_whose_chapter_is_lost_keeps_no_other_from_its_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = PastQuestion(YES_NO, frames=8)
    past = service.asker.find("*", question)
    (chapter,) = past["yard-1"].chapters
    read = service.holder.service._folder.files

    def files(name: str, version: int) -> Any:
        if name == chapter.name:
            raise HistoryError("its disk is gone")
        return read(name, version)

    monkeypatch.setattr(service.holder.service._folder, "files", files)
    together = service.asker.ask_many(past, question)
    lost = [camera for camera, answer in together.items() if isinstance(answer, NothingRememberedError)]
    assert (lost, set(together)) == (["yard-1"], set(CAMERAS))


@pytest.mark.slow
def test_cameras_beyond_the_most_are_named_as_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "MOST_CAMERAS", 1)
    with ExitStack() as stack:
        service = Service(tmp_path, stack)
        assert list(service.ask(cameras="yard-*")[-1].summary.not_asked) == [
            "yard-2: more than 1 cameras",
            "yard-[3]: more than 1 cameras",
        ]


@pytest.mark.slow
def test_what_cannot_be_asked_is_refused_by_name(service: Service) -> None:
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"question": "  "}, "INVALID_ARGUMENT", "the question is empty"),
        ({"cameras": ""}, "INVALID_ARGUMENT", "cameras: give a printable id"),
        ({"cameras": "k" * 100_000}, "INVALID_ARGUMENT", "of 1 to 200 bytes in UTF-8"),
        ({"cameras": "yard\0"}, "INVALID_ARGUMENT", "cameras: give a printable id"),
        ({"since_us": 9, "until_us": 9}, "INVALID_ARGUMENT", "the requested time is empty"),
        ({"words": 513}, "INVALID_ARGUMENT", "words must be at most 512"),
        ({"frames": 4097}, "INVALID_ARGUMENT", "frames at most 4096"),
        ({"cameras": "dock"}, "NOT_FOUND", "camera dock"),
        ({"cameras": "dock-*"}, "NOT_FOUND", "nothing is remembered of that time"),
        ({"until_us": 5}, "NOT_FOUND", "camera gate"),
    ]
    for request, code, words in refused:
        actual, details = refusal(service, **request)
        assert actual.name == code, request
        assert words in details, request
    assert len(service.ask()) == 3  # the next one is answered


@pytest.mark.slow
def test_questions_beyond_the_queue_are_refused_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        service = Service(tmp_path, stack, queue=1)
        inside, leave = threading.Event(), threading.Event()
        find = service.asker.find

        def waiting(cameras: str, question: PastQuestion) -> Any:
            inside.set()
            assert leave.wait(60.0)
            return find(cameras, question)

        monkeypatch.setattr(service.asker, "find", waiting)
        first = threading.Thread(target=service.ask)
        first.start()
        assert inside.wait(60.0)
        assert refusal(service) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "too many questions are waiting: ask again later",
        )
        leave.set()
        first.join()
        assert (service.ended("refused"), service.ended("answered")) == (1, 1)


@pytest.mark.slow
def test_a_holder_that_is_gone_is_named(service: Service) -> None:
    service.holder.kill()
    code, details = refusal(service)
    assert code is grpc.StatusCode.NOT_FOUND
    assert service.holder.address in details
    # Not `nothing`: an alert on failed questions has to see it.
    assert (service.ended("failed"), service.ended("nothing")) == (1, 0)


@pytest.mark.slow
def test_the_command_prints_answers_and_refusals(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKOUT_RECALL", service.address)
    asked = ["ask", "--fleet", YES_NO]
    shown = CliRunner().invoke(app, [*asked, "--camera", "gate"])
    assert shown.exit_code == 0, shown.output
    p_yes = service.asker.ask("gate", PastQuestion(YES_NO)).answer.p_yes
    assert f"camera gate: p(yes) = {p_yes:.3f}" in shown.output
    assert "covered: 2023-11-" in shown.output
    lines = CliRunner().invoke(app, [*asked, "--camera", "yard-*", "--json"]).output.splitlines()
    facts = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(facts) == 4
    assert facts[-1] == {"summary": {"cameras": 3, "answered": 2}}
    wrong = CliRunner().invoke(app, [*asked, "--camera", "dock"])
    assert wrong.exit_code == 1
    assert "camera dock" in str(wrong.exception)
    late = CliRunner().invoke(app, [*asked, "--camera", "gate", "--since", "tomorrow"])
    assert "--since 'tomorrow' must be" in str(late.exception)
