from __future__ import annotations

import dataclasses
import functools
import gc
import json
import threading
from pathlib import Path
from weakref import ref

import pytest

from bench.floors import DissimilarTokens, RandomPolicy
from lookout import models
from lookout.models.engines import Question
from lookout.recordings import Mode, PrefillSettings, RecordingError
from lookout.recordings.analysis import (
    Analysis,
    AnalysisError,
    AnalysisSettings,
    Analyzer,
    Journal,
    PartResult,
    Progress,
    analyze,
    recording,
    release,
)
from lookout.recordings.analysis.cutting import part_bounds
from lookout.video.files import Gap, VideoReader
from lookout.video.segments import CodecError
from tests.tiny_models import FEW_FAMILIES, checkpoint
from tests.unit.video.segments.clips import encode, with_hole, without_packets

QUESTIONS = ["Is anyone there?", "Is it dark?"]
SETTINGS = AnalysisSettings(fps=5.0, part_frames=8, prefill=PrefillSettings(group_frames=3, rho=0.5))


@functools.cache
def clip() -> bytes:
    return encode("mp4", frames=60, speed=1)  # six seconds at ten frames a second: 31 samples


@functools.cache
def analyzer(family: str = "internvl") -> Analyzer:
    return Analyzer(checkpoint(family))


def run(source: bytes | Path | None = None, **options: object) -> Analysis:
    return analyze(source or clip(), QUESTIONS, analyzer=analyzer(), settings=SETTINGS, **options)  # type: ignore[arg-type]


def told(found: Analysis) -> list[list[float]]:
    return [[answer.p_yes for answer in part.answers] for part in found.parts]


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_every_family_answers_every_part(family: str) -> None:
    found = analyze(clip(), QUESTIONS, analyzer=analyzer(family), settings=SETTINGS)
    assert [(part.part.first, part.part.stop) for part in found.parts] == [
        (0, 8),
        (8, 16),
        (16, 24),
        (24, 31),
    ]
    assert [part.frames for part in found.parts] == [8, 8, 8, 7]
    for i, answer in enumerate(found.answers):
        best = max(found.parts, key=lambda part: part.answers[i].p_yes)
        assert answer.p_yes == best.answers[i].p_yes
        assert (answer.start_s, answer.end_s) == (best.part.start_s, best.part.end_s)
        assert all(best.part.start_s <= at < best.part.end_s for at, _ in answer.seen_s)
        assert len(answer.seen_s) == 3
    assert found.timings is not None
    assert 0 < found.timings.efficiency <= 1.0001 or found.timings.total_s < 0.5
    json.dumps(found.to_dict())


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_changes_no_answer(mode: Mode) -> None:
    assert told(run(mode=mode)) == told(run())


@pytest.mark.slow
def test_parts_are_jobs() -> None:
    """Parts run one by one, in any order, give what one run gives."""
    whole = run()
    questions = [Question(str(i), text) for i, text in enumerate(QUESTIONS)]
    results: dict[int, PartResult] = {}
    with VideoReader(clip()) as reader:
        _, parts = analyzer().parts(reader, SETTINGS)
        for part in reversed(parts):
            again = dataclasses.replace(part)  # plain data: a copy will do
            results[part.number] = analyzer().run(reader, questions, SETTINGS, parts=[again])[0][0]
    assert tuple(results[i] for i in range(len(parts))) == whole.parts


def test_results_survive_json() -> None:
    for part in run().parts:
        assert PartResult.from_dict(json.loads(json.dumps(part.to_dict()))) == part


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"

    def stop(result: PartResult) -> None:
        if result.part.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(journal=journal, on_part=stop)
    assert len(journal.read_text().splitlines()) == 3
    with journal.open("a") as file:
        file.write('{"part": {"number": 2, "fi')  # killed in the middle of a line
    done: list[int] = []
    found = run(journal=journal, on_part=lambda result: done.append(result.part.number))
    assert done == [2, 3]
    assert found.parts == run().parts
    again = run(journal=journal)
    assert again.timings is None
    assert again.parts == found.parts


@pytest.mark.parametrize("content", [b"my notes\nof May\n", b"\xf0\x28\x8c", b"[1]\n", b"[" * 100_000, b"{}"])
def test_a_file_that_is_no_journal_is_not_replaced(content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(AnalysisError, match=r"notes\.txt exists but is not a journal"):
        run(journal=path)
    assert path.read_bytes() == content
    for name in (tmp_path, Path(".")):
        with pytest.raises(AnalysisError, match=r"is not a file: give a file, such as run\.jsonl"):
            run(journal=name)


@pytest.mark.slow
def test_a_journal_is_named_by_a_text_too(tmp_path: Path) -> None:
    assert run(journal=str(tmp_path / "run.jsonl")).parts == run(journal=tmp_path / "run.jsonl").parts
    (tmp_path / "empty.jsonl").touch()
    assert run(journal=tmp_path / "empty.jsonl").parts


@pytest.mark.parametrize("name", ["on_part", "progress"])
def test_what_cannot_be_called_is_refused_before_the_recording_is_read(name: str) -> None:
    with pytest.raises(AnalysisError, match=f"{name} must be a function, not 5"):
        run(**{name: 5})


@pytest.mark.long
def test_gaps_are_named_once_whether_or_not_the_run_was_stopped(tmp_path: Path) -> None:
    """Two seconds are lost; they end one part, are all of the next and begin a third."""
    closed = {"x264-params": "bframes=0:keyint=10:min-keyint=10:scenecut=0"}
    broken = without_packets(encode("mp4", frames=90, speed=1, options=closed), 30, 50)
    journal = tmp_path / "run.jsonl"

    def stop(result: PartResult) -> None:
        if result.part.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(broken, journal=journal, on_part=stop)
    for found in (run(broken), run(broken, journal=journal), run(broken, journal=journal)):
        assert [(gap.start_us, gap.end_us, gap.samples) for gap in found.gaps] == [(3_000_000, 5_000_000, 10)]
    assert found.run_s == 0.0  # the last run had nothing left to do
    assert run(broken, start_s=6.0).run_s == pytest.approx(3.0)


@pytest.mark.slow
def test_a_hole_is_a_gap_and_no_part_spans_it() -> None:
    """Three seconds of pictures, a minute of nothing, three seconds of pictures."""
    found = run(with_hole(encode("mp4", frames=60, speed=1, gop=10), 3.0, 60.0))
    assert [(part.part.start_s, part.part.end_s) for part in found.parts] == [
        (0.0, 1.6),
        (1.6, 3.0),
        (63.0, 64.6),
        (64.6, 66.0),
    ]
    assert found.gaps == (Gap(3_000_000, 63_000_000, 0, "no footage: the file has no picture for 60 s"),)
    for answer in found.answers:
        assert not [span for span in answer.yes_s if span[0] < 60 and span[1] > 3.01]
    part = run(with_hole(encode("mp4", frames=60, speed=1, gop=10), 3.0, 60.0), start_s=2.0, end_s=30.0)
    assert (part.parts[-1].part.end_s, [(gap.start_s, gap.end_s) for gap in part.gaps]) == (
        3.0,
        [(3.0, 30.0)],
    )


def test_another_request_begins_its_journal_anew(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    run(journal=journal)
    done: list[int] = []
    run(journal=journal, rho=0.9, on_part=lambda result: done.append(result.part.number))
    assert done == [0, 1, 2, 3]


def test_a_journal_ignores_what_only_changes_speed(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    run(journal=journal)
    assert run(journal=journal, mode=Mode.SEQUENTIAL, threads=1, waiting=4).timings is None
    assert Journal(journal, "another").read() == {}


def test_progress_ends_at_the_end() -> None:
    seen: list[Progress] = []
    run(progress=seen.append)
    assert seen[-1] == Progress(31, 31, 4, 31, 4)
    assert [each.prefilled for each in seen] == sorted(each.prefilled for each in seen)


def test_a_time_range_and_changed_patches_only() -> None:
    found = run(start_s=2.0, end_s=4.0, prune=True)
    assert (found.parts[0].part.start_s, found.parts[-1].part.end_s) == (2.0, 4.0)
    assert sum(part.frames for part in found.parts) == 10
    assert all(part.tokens <= part.tokens_total for part in found.parts)


def test_a_preset_and_a_policy_say_which_patches_are_encoded() -> None:
    span = {"start_s": 2.0, "end_s": 4.0}
    pruned, preset = run(**span, prune=True), run(**span, prune=True, preset="default")
    assert [part.tokens for part in preset.parts] == [part.tokens for part in pruned.parts]
    assert preset.answers == pruned.answers
    whole, dropped = run(**span), run(**span, policy=DissimilarTokens())
    drawn = run(**span, policy=RandomPolicy(share=0.25))
    for fewer in (dropped, drawn):
        assert sum(part.tokens for part in fewer.parts) < sum(part.tokens for part in whole.parts)
    # After the tower against before it: only a mask saves vision.
    assert dropped.parts[0].flops["vision"] == whole.parts[0].flops["vision"]
    assert drawn.parts[0].flops["vision"] < whole.parts[0].flops["vision"]


def test_a_preset_that_a_recording_cannot_follow_is_refused_by_its_name() -> None:
    for name in ("preset", "policy"):
        with pytest.raises(AnalysisError, match=f"{name} 'codecsight' needs motion vectors"):
            run(**{name: "codecsight"})
        with pytest.raises(AnalysisError, match="'nothing' is unknown: choose one of default"):
            run(**{name: "nothing"})


@pytest.mark.slow
def test_several_questions_cost_one_prefill() -> None:
    one = analyze(clip(), QUESTIONS[:1], analyzer=analyzer(), settings=SETTINGS)
    both = run()
    assert sum(p.flops["prefill"] for p in both.parts) == sum(p.flops["prefill"] for p in one.parts)
    assert one.answers[0].p_yes == pytest.approx(both.answers[0].p_yes, abs=1e-6)


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(AnalysisError, match="questions: give at least one"):
        analyze(clip(), [], analyzer=analyzer())
    with pytest.raises(AnalysisError, match="'fsp' is not a setting"):
        run(fsp=2)
    with pytest.raises(AnalysisError, match="settings must be an AnalysisSettings, not 5"):
        analyze(clip(), QUESTIONS, settings=5)  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="analyzer must be an Analyzer, not 5"):
        analyze(clip(), QUESTIONS, analyzer=5)  # type: ignore[arg-type]
    with pytest.raises(RecordingError, match="rho"):
        run(rho=0)
    with pytest.raises(AnalysisError, match="has no frame from 60 s"):
        run(start_s=60.0)
    with pytest.raises(AnalysisError, match="is empty"):
        run(start_s=2.0, end_s=1.0)
    with pytest.raises(CodecError, match="cannot be read"):
        run(Path("nothing.mp4"))


def test_the_tiny_model_is_read_in_the_length_it_was_trained_for() -> None:
    tiny = Analyzer()
    assert tiny.part_frames(AnalysisSettings()) == 20
    assert analyzer().part_frames(AnalysisSettings()) > 500
    tiny.close()


@pytest.mark.parametrize(
    ("samples", "bounds"),
    [
        (1, [0, 1]),
        (8, [0, 8]),
        (10, [0, 5, 10]),
        (12, [0, 8, 12]),
        (16, [0, 8, 16]),
        (18, [0, 8, 13, 18]),
        (31, [0, 8, 16, 24, 31]),
    ],
)
def test_no_part_is_a_small_rest(samples: int, bounds: list[int]) -> None:
    assert part_bounds(samples, 8) == bounds


def test_answers_are_named_by_their_questions() -> None:
    found = run()
    written = json.loads(json.dumps(found.to_dict()))
    for part in written["parts"]:
        assert [answer["question"] for answer in part["answers"]] == QUESTIONS


def test_nothing_is_printed_and_no_model_loaded_for_what_cannot_be_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready = Analyzer(checkpoint("internvl"))
    capfd.readouterr()  # what writes the checkpoint shows its progress
    with pytest.raises(CodecError):
        analyze(b"no video", QUESTIONS, analyzer=ready, settings=SETTINGS)
    assert not {"engine", "tower"} & set(vars(ready))
    analyze(clip(), QUESTIONS, analyzer=ready, settings=SETTINGS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("question", ["What is the person wearing?", "Describe the scene", "person"])
def test_a_question_that_the_small_model_cannot_answer_is_refused(question: str) -> None:
    with pytest.raises(models.QuestionError, match="answers only yes/no questions"):
        analyze(clip(), [question])
    with pytest.raises(models.QuestionError, match="writes no text"):
        analyze(clip(), ["Is anyone there?"], describe=8)


def test_questions_of_yes_or_no_are_known_by_a_verb() -> None:
    asked = [
        "Is it dark?",
        "At night, is anyone there?",
        "Someone fell. Has help come?",
        "Isn't it dark?",
        "'Is it dark?'",
    ]
    assert all(models.asks_yes_no(question) for question in asked)
    assert not any(models.asks_yes_no(question) for question in ("", "?", "What is it?", "A person is there"))


@pytest.mark.long
def test_the_model_stays_loaded_between_calls() -> None:
    folder = checkpoint("internvl")
    analyze(clip(), QUESTIONS, model=folder, settings=SETTINGS)
    (kept,) = recording._models.values()
    first = kept.engine
    found = analyze(clip(), QUESTIONS, model=folder, settings=SETTINGS)
    assert told(found) == told(run())
    (kept,) = recording._models.values()
    assert kept.engine is first
    analyze(clip(), QUESTIONS, model=checkpoint("qwen3_vl"), settings=SETTINGS)
    assert len(recording._models) == 1
    release()
    assert not recording._models


@pytest.mark.long
def test_an_analyzer_frees_its_model_and_loads_it_again() -> None:
    with Analyzer(checkpoint("internvl")) as analyzer:
        before = analyze(clip(), QUESTIONS, analyzer=analyzer, settings=SETTINGS)
        engine, tower = ref(analyzer.engine), ref(analyzer.tower)
        threads = set(threading.enumerate())
    gc.collect()
    assert engine() is None, "the language model stays loaded"
    assert tower() is None, "the tower stays loaded"
    assert set(threading.enumerate()) <= threads
    with analyzer:
        after = analyze(clip(), QUESTIONS, analyzer=analyzer, settings=SETTINGS)
    assert [answer.p_yes for answer in after.answers] == [answer.p_yes for answer in before.answers]
