"""What the commands accept, and what they say when they cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import time
from importlib import metadata
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console
from typer.testing import CliRunner

import lookout.cli
from lookout.cli.alerts import LinePrinter
from lookout.cli.app import app, main
from lookout.cli.connect import find_bootstrap
from lookout.cli.coverage import coverage_table
from lookout.cli.demo import DemoResult, footage_sources, product_watches
from lookout.cli.fleet_jobs import Job
from lookout.cli.fleet_settings import settings_of_replay, settings_of_services
from lookout.cli.footage import footage_files
from lookout.cli.model import find_model
from lookout.cli.options import CliError
from lookout.cli.publish import camera_of
from lookout.cli.report import FleetRecord
from lookout.cli.report.run import Point
from lookout.cli.up import parse_settings, unread_settings
from lookout.cli.watches import parse_span, parse_zone, rule_text, slug, span_text
from lookout.local import LocalError, create_topics
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.recordings_pb2 import RecordingJob
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, ScheduleEntry, Watch
from lookout.wire import Stage


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["publish"],
        ["watch", "add"],
        ["alerts"],
        ["doctor"],
        ["up"],
        ["demo"],
        ["inspect"],
        ["verify"],
        ["report"],
        ["analyze"],
        ["model", "check"],
        ["eval"],
    ],
)
def test_every_command_has_help(words: list[str]) -> None:
    code, text = run(*words, "--help")
    assert code == 0
    assert "Usage:" in text


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "list", "-b", "127.0.0.1:9"],
        ["publish", "nowhere.mp4", "--camera", "x", "-b", "127.0.0.1:9"],
        ["inspect", "nowhere.mp4"],
        ["alerts", "-b", "127.0.0.1:9", "--since", "yesterday"],
        ["up", "--model", "nowhere"],
        ["up", "--data", "/dev/null/fleet"],
    ],
)
def test_an_error_is_one_line_with_advice(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lookout", *words])
    monkeypatch.setattr("lookout.cli.connect._ANSWER_S", 0.5)
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err.strip()
    assert end.value.code == 1
    assert said.startswith("error ")
    assert "\n" not in said
    assert "Traceback" not in said


def test_the_address_given_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOKOUT_CACHE", str(tmp_path))
    monkeypatch.setenv("LOOKOUT_KAFKA", "named:1")
    assert find_bootstrap("given:2") == "given:2"
    assert find_bootstrap(None) == "named:1"
    monkeypatch.delenv("LOOKOUT_KAFKA")
    with pytest.raises(CliError, match="lookout up"):
        find_bootstrap(None)


def test_a_schedule_is_read_and_a_wrong_one_refused() -> None:
    span = parse_span("fri-mon 22:00-06:00 Europe/Berlin")
    assert list(span.weekdays) == [5, 6, 7, 1]
    assert (span.start, span.end, span.time_zone) == ("22:00", "06:00", "Europe/Berlin")
    assert list(parse_span("mon,wed 08:00-17:30").weekdays) == [1, 3]
    assert list(parse_span("08:00-17:30").weekdays) == []
    assert parse_span("22:00-24:00").end == "24:00"
    for wrong in ("always", "8-17", "xyz 08:00-17:00", "25:00-26:00", "08:00-17:00 Berlin"):
        with pytest.raises(CliError, match="--schedule"):
            parse_span(wrong)


def test_a_zone_is_read_and_a_wrong_one_refused() -> None:
    zone = parse_zone("door:0.1,0.2 0.4,0.2 0.4,0.9")
    assert zone.name == "door"
    assert [(point.x, point.y) for point in zone.points] == [(0.1, 0.2), (0.4, 0.2), (0.4, 0.9)]
    assert parse_zone("0,0 1,0 1,1").name == ""
    for wrong in ("door:", "0,0 1,1", "0,0 2,0 1,1", "a,b c,d e,f", "1,2,3 0,0 1,1"):
        with pytest.raises(CliError, match="--zone"):
            parse_zone(wrong)


@pytest.mark.slow
@given(st.text(max_size=60))
@settings(max_examples=50)
def test_an_id_is_always_usable(question: str) -> None:
    name = slug(question)
    assert len(name) > 0
    assert name.replace("-", "").isalnum()
    assert name == slug(question)


def test_a_rule_is_shown_in_words() -> None:
    watch = Watch(rule=Rule(threshold=0.7, k=2, n=3, cooldown_s=60), disabled=True)
    assert rule_text(watch) == "p ≥ 0.7, 2 of 3 windows, quiet 60 s, disabled"


def test_a_rule_that_cannot_be_followed_says_why_in_the_list() -> None:
    nowhere = ScheduleEntry(start="01:00", end="02:00", time_zone="Berlin")
    assert "skipped: schedule: 'Berlin'" in rule_text(Watch(rule=Rule(schedule=[nowhere])))


@given(st.lists(st.integers(1, 7), unique=True), st.times(), st.times(), st.sampled_from(["", "Asia/Tokyo"]))
@settings(max_examples=30)
def test_a_schedule_is_shown_as_it_is_read(days: list[int], start: time, end: time, zone: str) -> None:
    span = ScheduleEntry(weekdays=days, start=f"{start:%H:%M}", end=f"{end:%H:%M}", time_zone=zone)
    assert parse_span(span_text(span)) == span


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", "0"], "--threshold must be between 0.001 and 1, not 0"),
        (["--threshold", "0.0009"], "--threshold must be between 0.001 and 1, not 0.0009"),
        (["--threshold", "1.5"], "--threshold must be between 0.001 and 1, not 1.5"),
        (["--clear", "0"], "--clear must be above 0"),
        (["--camera", ""], "--camera is empty"),
        (["--of", "70/80"], "n <= 64"),
        (["--of", "9" * 5000 + "/" + "9" * 5000], "is not like 2/3"),
        (["--schedule", "9" * 5000], "is not like 'mon-fri"),
        (["--zone", "0,0 1,0 1," + "9" * 5000], "with x and y between 0 and 1"),
        (["--cooldown", "inf"], "cooldown"),
        (["--schedule", "08:00-17:00 Berlin"], "Europe/Berlin"),
    ],
)
def test_a_watch_that_could_not_be_followed_is_refused_before_kafka(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["watch", "add", "Is it?", "-b", "127.0.0.1:9", *words])
    assert isinstance(result.exception, CliError)
    assert said in str(result.exception)
    assert len(str(result.exception)) < 300


@pytest.mark.parametrize(
    ("source", "camera", "said"),
    [
        ("clip.mp4", "", "not a valid camera id"),
        ("clip.mp4", "a" * 201, "not a valid camera id"),
        ("clip.mp4", "yard-{nam}", "{nam} is unknown"),
        ("rtsp://camera/stream", "gate", "lookout camera add NAME"),
        ("nowhere.mp4", "gate", "no file or folder"),
    ],
)
def test_what_cannot_be_published_is_refused_before_kafka(
    source: str, camera: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clip.mp4").touch()
    result = CliRunner().invoke(app, ["publish", source, "--camera", camera, "-b", "127.0.0.1:9"])
    assert isinstance(result.exception, CliError)
    assert said in str(result.exception)


def test_each_file_gives_its_name_to_its_camera() -> None:
    assert camera_of("yard-{name}", Path("a/north.mp4")) == "yard-north"
    assert camera_of("{name}", None) == "stdin"
    assert camera_of("tür-3", Path("x.mp4")) == "tür-3"


def test_a_cameras_name_is_printed_whole() -> None:
    name = "a-camera-with-a-long-name-on-the-north-wall"
    console = Console(width=60, file=StringIO())
    LinePrinter(console)(Alert(camera=name, kind=Alert.KIND_OPENED))
    console.print(coverage_table([{"camera": name, "watch": name, "outcome": "answered", "seconds": 1.0}]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert name in text.splitlines()[0]
    assert "…" not in text
    assert "answered" in text
    assert "degraded" not in text


def test_settings_that_a_local_fleet_does_not_read_are_named() -> None:
    environ = {
        "LOOKOUT_WINDOW_S": "20",
        "LOOKOUT_KAFKA": "a:1",
        "LOOKOUT_KAFKA_PASSWORD_FILE": "x",
        "PATH": "",
    }
    assert unread_settings(environ) == ["LOOKOUT_WINDOW_S"]


def test_a_broker_that_does_not_answer_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lookout.local.topics._REACH_S", 0.5)
    with pytest.raises(LocalError, match=r"Kafka at 127.0.0.1:9 does not answer"):
        create_topics("127.0.0.1:9")
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_while_the_commands_are_imported_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "lookout.cli.app", Interrupted())
    with pytest.raises(SystemExit) as end:
        lookout.cli.main()
    assert end.value.code == 130


def test_the_version_is_the_package_s() -> None:
    assert run("--version") == (0, f"lookout {metadata.version('lookout-fleet')}\n")


@pytest.mark.parametrize("group", ["recordings", "backtests"])
def test_jobs_are_listed_with_their_tenant(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {}
    for number, tenant in enumerate(("", "acme")):
        request = RecordingJob(id=f"job-{number}", tenant=tenant, questions=["Is it?"])
        if group == "backtests":
            request.backtest.SetInParent()
        jobs[request.id] = Job(request)
    monkeypatch.setattr("lookout.cli.recordings.read_jobs", lambda _: jobs)
    _, text = run(group, "list", "--bootstrap", "127.0.0.1:1", "--json")
    assert [json.loads(line)["tenant"] for line in text.splitlines()] == ["default", "acme"]
    _, text = run(group, "list", "--bootstrap", "127.0.0.1:1")
    assert [line.split()[1] for line in text.splitlines()] == ["tenant", "default", "acme"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--fps", "inf"], "--fps: inf is not a finite number"),
        (["--fps", "nan"], "--fps: nan is not a finite number"),
        (["--fps", "0"], "--fps: fps=0 must be above 0 and at most 1000"),
        (["--fps", "1e308"], "--fps: fps=1e+308 must be above 0 and at most 1000"),
        (["--fps", "9" * 5000], "--fps: inf is not a finite number"),
        (["--fps", "9" * 5000 + "x"], "999... is not a valid float"),
        (["--rho", "nan"], "--rho: nan is not a finite number"),
        (["--rho", "-1"], "--rho: rho=-1 must be above 0 and at most 1"),
        (["--group", "9" * 4000], "--group: group_frames must be from 1 to 1000000"),
        (["--group", "9" * 5000], "999... is not a valid int"),
        (["--part", "2000000"], "--part: part_frames must be from 1 to 1000000, not 2000000"),
        (["--threads", "0"], "--threads 0"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_its_option(words: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["analyze", "no-such-file.mp4", "-q", "Is a person in view?", *words])
    text = result.output + str(result.exception)
    assert problem in " ".join(text.replace("│", " ").replace("'", "").split())
    assert "no-such-file" not in text
    assert len(text) < 1000


def test_errors_repeat_no_thousands_of_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ["x.mp4", "-q", "Is it?", "--since", "9" * 5000],
        ["9" * 5000, "-q", "Is a person in view?"],
    ):
        monkeypatch.setattr("sys.argv", ["lookout", "analyze", *words])
        with pytest.raises(SystemExit):
            main()
        text = "".join(capsys.readouterr())
        assert "999..." in text or "999… (" in text
        assert len(text) < 300


def test_settings_of_the_fleet() -> None:
    common, own = parse_settings(
        ["window_s=20", "LOOKOUT_FPS=1", "prune-encode.batch=5", "decode.silence_s=3"]
    )
    assert common == {"window_s": "20", "fps": "1"}
    assert own == {Stage.PRUNE_ENCODE: {"batch": "5"}, Stage.DECODE: {"silence_s": "3"}}
    assert parse_settings(["fps=1"], "codecsight")[0] == {"preset": "codecsight", "fps": "1"}
    for wrong in ("window_s", "kitchen.window_s=2"):
        code, text = run("up", "--set", wrong)
        assert code == 2
        assert "NAME=VALUE" in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--set", "fsp=3"], "--set fsp: no service has such a setting; did you mean fps?"),
        (["--set", "decode.fsp=3"], "--set: decode: unknown setting LOOKOUT_FSP; did you mean LOOKOUT_FPS?"),
        (["--set", "prefill.silence_s=3"], "--set: prefill: unknown setting LOOKOUT_SILENCE_S"),
        (["--set", "thin_after_s=9"], "--set thin_after_s: this setting was removed: set skip_after_s"),
        (
            ["--set", "decode.store__fetch_s=2"],
            "LOOKOUT_STORE__FETCH_S was removed: the value is fixed at 10 seconds",
        ),
        (["--set", "fps=inf"], "LOOKOUT_FPS='inf'"),
        (["--set", "decode.silence_s=never"], "--set: decode: LOOKOUT_SILENCE_S='never'"),
        (["--set", f"fps={'9' * 5000}"], "LOOKOUT_FPS='999"),
        (["--set", "recall.device=cpu"], "--set recall.device: recall does not run; give --memory"),
    ],
)
def test_settings_are_checked_before_a_fleet_starts(
    words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("lookout.cli.up._run", started.append)
    result = CliRunner().invoke(app, ["up", *words])
    assert isinstance(result.exception, CliError)
    assert problem in str(result.exception)
    assert len(str(result.exception)) < 600
    assert not started


def test_a_setting_goes_to_the_services_that_have_it() -> None:
    common, own = {"fps": "1", "uri_hosts": "cameras"}, {"decode": {"silence_s": "3"}}
    settings = settings_of_services(common, own, list(Stage))
    assert settings["decode"] == {"fps": "1", "uri_hosts": "cameras", "silence_s": "3"}
    assert settings["alerts"] == settings["prefill"] == {"fps": "1"}


def test_settings_of_a_fleet_are_those_of_a_command_that_computes_its_past_again() -> None:
    common = {"anchor_samples": "4", "key_every": "10"}
    own = {"decode": {"overlap_s": "2"}, "recall": {"holders": "127.0.0.1:1"}}
    model = find_model(None)
    settings = settings_of_replay(model, common, own)
    folder = {"model_dir": str(model)}
    assert settings["decode"] == {**folder, "anchor_samples": "4", "overlap_s": "2"}
    assert settings["prune-encode"] == {**folder, "anchor_samples": "4"}
    assert settings["prefill"] == {**folder, "key_every": "10"}
    assert "recall" not in settings


@pytest.mark.parametrize(
    "words",
    [["verify"], ["memory", "rebuild", "--camera", "gate", "--to", "tier"], ["backtest", "Is it dark?"]],
)
def test_a_setting_that_no_stage_has_is_refused_before_the_past_is_read(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--set", "anchor_sample=4"])
    assert isinstance(result.exception, CliError)
    assert str(result.exception).endswith("no service has such a setting; did you mean anchor_samples?")


def test_footage_is_found_by_suffix(tmp_path: Path) -> None:
    for name in ("b.MP4", "a.ts", "notes.txt", ".hidden.mp4", "deep/c.264", ".git/d.mp4"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert [path.name for path in footage_files(tmp_path)] == ["a.ts", "b.MP4", "c.264"]
    assert footage_files(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    with pytest.raises(CliError, match="no file"):
        footage_files(tmp_path / "nowhere")


def test_cameras_of_footage_have_names_of_their_own() -> None:
    names = [source.id for source in footage_sources([Path("a/x y.mp4"), Path("b/x y.ts"), Path("ä.mp4")])]
    assert names == ["x-y", "x-y-2", "ä"]


def test_the_demo_asks_the_products_questions() -> None:
    watches = product_watches()
    assert len({watch.id for watch in watches}) == len(watches) == 5
    assert "Is anyone lying on the ground?" in {watch.question for watch in watches}


def test_a_demo_that_saw_nothing_knows_it() -> None:
    outcome = DemoResult(FleetRecord(), [], [])
    camera = outcome.run.camera("gate")
    assert outcome.answered == 0
    for window, kind in enumerate(
        [Verdict.OUTCOME_ANSWERED, Verdict.OUTCOME_SKIPPED, Verdict.OUTCOME_ANSWERED]
    ):
        for watch in ("fall", "fire"):
            point = Point(0, window, 0, 1, kind, 0.5, "", 1.0)
            camera.points.setdefault(watch, []).append(point)
    assert outcome.answered == 2


def test_the_model_that_comes_along_is_found() -> None:
    assert (find_model(None) / "model.safetensors").is_file()


@pytest.mark.slow
def test_inspect_prints_what_bytes_gave(tmp_path: Path) -> None:
    import av
    import numpy as np

    with av.open(str(tmp_path / "good.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = 64
        for index in range(12):
            picture = np.full((64, 64, 3), index * 20, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    (tmp_path / "bad.mp4").write_bytes(b"ffconcat version 1.0\nfile /etc/passwd\n")
    code, text = run("inspect", str(tmp_path), "--json")
    rows = {row["path"]: row for row in map(json.loads, text.strip().splitlines())}
    assert code == 0
    assert rows["good.mp4"]["frames"] == 12
    assert rows["good.mp4"]["error"] == ""
    assert rows["bad.mp4"]["error"]
    assert rows["bad.mp4"]["frames"] == 0
    code, text = run("inspect", str(tmp_path / "bad.mp4"))
    assert code == 1
    assert text.strip() == f"✗ bad.mp4: {rows['bad.mp4']['error']}"


@pytest.mark.slow
def test_a_stream_is_cut_from_a_pipe(tmp_path: Path) -> None:
    import av
    import numpy as np

    from lookout.cli.publish import cut_pipe, cutter

    path = tmp_path / "clip.ts"
    with av.open(str(path), "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "10", "sc_threshold": "0"})
        stream.width = stream.height = 64
        for index in range(60):
            picture = np.random.default_rng(index).integers(0, 255, (64, 64, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as source, cutter() as pool:
        assert source.stdout is not None
        pieces = list(cut_pipe(pool, source.stdout, 2.0))
    assert len(pieces) == 3
    assert [piece.start_us for piece in pieces] == [0, 2_000_000, 4_000_000]


def test_help_shows_what_many_need_first() -> None:
    text = CliRunner().invoke(app, ["analyze", "--help"]).output
    common, rest = text.split("─ Advanced ─")
    advanced, fleet = rest.split("─ With --fleet ─")
    assert all(option in common for option in ("--question", "--since", "--page", "--describe", "--fleet"))
    assert all(option in advanced for option in ("--rho", "--group", "--threads", "--preset"))
    assert all(option in fleet for option in ("--wait", "--tenant", "--bootstrap"))
