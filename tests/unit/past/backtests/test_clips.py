"""Back-tests of files and folders: cameras, cost, schedules, zones and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest

from lookout import Pipeline, PipelineError
from lookout.models.vision import FrameInput
from lookout.past.backtests import Backtest, clip_backtest, clip_cameras
from lookout.pruning import PrunePolicy
from lookout.rules import Outcome, Rule, RuleError, ScheduleEntry, Zone
from lookout.v1.labels_pb2 import Label
from tests.tiny_models import checkpoint
from tests.unit.video.files.test_begin import tagged
from tests.unit.video.segments.clips import encode

QUESTION = "Is anyone there?"
ALWAYS = Rule(threshold=0.0001)


def pipeline_of() -> Pipeline:
    """A pipeline with windows of two strides of two seconds."""
    return Pipeline(checkpoint("internvl"), [QUESTION], fps=2, stride_s=2, window_s=4)


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    with pipeline_of() as opened:
        yield opened


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seconds in which a square moves from left to right."""
    path = tmp_path_factory.mktemp("films") / "yard.mp4"
    path.write_bytes(encode("mp4", frames=80, fps=10, speed=1))
    return path


def test_a_pipeline_without_a_question_is_refused() -> None:
    with (
        Pipeline(checkpoint("internvl"), memory="1h") as silent,
        pytest.raises(PipelineError, match="needs a pipeline with a question"),
    ):
        clip_backtest(silent, ["yard.mp4"], ALWAYS)


def test_what_is_of_another_kind_is_refused_by_its_name(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineError, match=r"pipeline must be a lookout\.Pipeline, not None"):
        clip_backtest(None, ["yard.mp4"], ALWAYS)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="clips must be paths of files or folders, not None"):
        clip_backtest(pipeline, None, ALWAYS)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="clips must be paths of files or folders, not 3"):
        clip_backtest(pipeline, ["yard.mp4", 3], ALWAYS)  # type: ignore[list-item]
    with pytest.raises(RuleError, match=r"rule must be a lookout Rule, not 0\.5"):
        clip_backtest(pipeline, ["yard.mp4"], 0.5)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named_and_the_others_count(pipeline: Pipeline, tmp_path: Path) -> None:
    data = encode("fmp4", frames=60, fps=10, speed=1)
    files = [tmp_path / name for name in ("a.mp4", "b.mp4", "c.mp4")]
    for file, content in zip(files, (b"no video", data[: 3 * len(data) // 4], data), strict=True):
        file.write_bytes(content)
    past = clip_backtest(pipeline, files, Rule(threshold=0.01))
    assert past.cameras == {"b.mp4", "c.mp4"}
    assert list(past.unread) == [str(file) for file in files[:2]]
    assert "is not a video" in past.unread[str(files[0])]
    assert "ends unexpectedly" in past.unread[str(files[1])]


def test_a_folder_has_the_files_in_and_below_it_and_equal_names_stay_apart(tmp_path: Path) -> None:
    for name in ("a/gate.mp4", "b/gate.mp4", "b/yard.TS", "b/.hidden.mp4", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    first, second, yard = (tmp_path / name for name in ("a/gate.mp4", "b/gate.mp4", "b/yard.TS"))
    assert clip_cameras(tmp_path) == {"gate.mp4": first, str(second): second, "yard.TS": yard}
    assert clip_cameras([str(first), tmp_path / "a"]) == {"gate.mp4": first}
    (tmp_path / "empty").mkdir()
    assert clip_cameras(tmp_path / "empty") == {"empty": tmp_path / "empty"}


@pytest.mark.slow
def test_an_empty_folder_and_a_missing_file_are_named(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    past = clip_backtest(pipeline, [tmp_path / "empty", tmp_path / "gone.mp4"], ALWAYS)
    assert list(past.unread) == [str(tmp_path / "empty"), str(tmp_path / "gone.mp4")]
    assert not past.cameras


@pytest.mark.slow
def test_a_whole_window_of_every_patch_costs_what_dense_costs(film: Path) -> None:
    everything = PrunePolicy(everything=True)
    with Pipeline(
        checkpoint("internvl"), [QUESTION], fps=2, stride_s=8, window_s=8, policy=everything
    ) as whole:
        past = clip_backtest(whole, film, ALWAYS)
    assert past.outcomes == {"answered": 1}
    cost = past.cost
    assert cost.flops == cost.flops_dense == cost.flops_windows + cost.flops_question > 0
    assert cost.flops_question > 0


@pytest.mark.slow
def test_windows_say_what_the_tower_computed(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pipeline_of() as own:
        tower, computed = own._host.tower, []
        encode_frames = tower.encode

        def counted(frames: Sequence[FrameInput]) -> Any:
            computed.append(tower.flops(frames))
            return encode_frames(frames)

        monkeypatch.setattr(tower, "encode", counted)
        windows = list(own.windows(film))
        assert [window.vision_flops for window in windows] == computed
        assert sum(computed) < sum(window.vision_flops_dense for window in windows)
        past = clip_backtest(own, film, ALWAYS)
    assert len(windows) == past.outcomes["answered"] == 4
    assert past.dense_share < 1
    assert past.live_share == pytest.approx(1 + past.question_share)
    assert past.cost.cpu_s > 0
    assert past.cost.device_s == 0


@pytest.mark.slow
def test_a_schedule_needs_to_know_when_a_file_begins(pipeline: Pipeline, film: Path, tmp_path: Path) -> None:
    evening = Rule(threshold=0.0001, schedule=(ScheduleEntry(time(20), time(21)),))
    nobody = clip_backtest(pipeline, [film, tmp_path / "gone.mp4"], evening)
    assert "the file does not say when it begins; give the time with `begins`" in nobody.unread[str(film)]
    assert set(nobody.unread) == {str(film), str(tmp_path / "gone.mp4")}
    inside = clip_backtest(pipeline, film, evening, begins=lambda _: datetime(2026, 1, 1, 20, tzinfo=UTC))
    before = clip_backtest(pipeline, film, evening, begins=lambda _: datetime(2026, 1, 1, 19, tzinfo=UTC))
    (told := tmp_path / film.name).write_bytes(tagged({"creation_time": "2026-05-01T20:30:00Z"}))
    assert clip_backtest(pipeline, told, evening).incidents
    always = clip_backtest(pipeline, film, ALWAYS)
    assert times_of(inside) == times_of(always) != []
    assert times_of(before) == []
    assert inside.timeline == always.timeline


def times_of(past: Backtest) -> list[tuple[int, int]]:
    return [(incident.opened_ms, incident.end_ms) for incident in past.incidents]


@pytest.mark.slow
def test_a_zone_is_about_where_the_file_moves(pipeline: Pipeline, film: Path) -> None:
    left = Zone(((0, 0), (0.6, 0), (0.6, 1), (0, 1)))
    corner = Zone(((0.9, 0.9), (1, 0.9), (1, 1), (0.9, 1)))
    seen = clip_backtest(pipeline, film, Rule(threshold=0.0001, zones=(left,)))
    unseen = clip_backtest(pipeline, film, Rule(threshold=0.0001, zones=(corner,)))
    assert len(seen.incidents) == 1
    assert unseen.incidents == []
    assert seen.outcomes == unseen.outcomes


@pytest.mark.slow
def test_labels_are_scored_in_the_times_of_the_file(pipeline: Pipeline, film: Path) -> None:
    labels = []
    for number, end_ms in enumerate((4000, 8000)):
        entry = Label(camera="yard.mp4", watch="w", incident=str(number), right=number == 0)
        entry.start.FromMilliseconds(end_ms - 2000)
        entry.end.FromMilliseconds(end_ms)
        labels.append(entry)
    always = Rule(threshold=0.0001, schedule=(ScheduleEntry(time(0), time(0)),))
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    past = clip_backtest(pipeline, film, always, labels=labels, begins=lambda _: moment)
    assert past.timeline is not None
    windows = {window.end_ms: window for window in past.timeline["yard.mp4"]}
    assert all(window.outcome is Outcome.ANSWERED for window in windows.values())
    assert [score.score for score in past.labels] == pytest.approx([windows[ms].p_yes for ms in (4000, 8000)])
