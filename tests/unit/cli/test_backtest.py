"""`lookout backtest` in this process says what it says as a job: labels, precision, seconds and shares."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.options import CliError
from lookout.errors import LookoutError
from lookout.past.backtests.labels import quality, threshold_for
from lookout.rules import messages
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import (
    BacktestAnswer,
    BacktestJob,
    LabelScore,
    RecordingAnswers,
    RecordingJob,
)
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import (
    ANSWERS,
    ERASURES,
    FRAMES,
    LABELS,
    RECORDINGS,
    SEGMENTS,
    TOKENS,
    VERDICTS,
    label_key,
    to_json,
)
from tests.mock_kafka import mock_kafka
from tests.one_process_fleet import OneProcessFleet
from tests.streams import clip
from tests.unit.past.backtests.scores import score_of
from tests.unit.past.backtests.test_past_windows import CROWD, SAMPLING, replayed, run

THRESHOLD = str(CROWD.rule.threshold)
LONG_JOB = "2026-11-24-0123456789abcdef"
TOPICS = (FRAMES.name, SEGMENTS.name, TOKENS.name)


@pytest.fixture(scope="module")
def fleet() -> Iterator[OneProcessFleet]:
    fleet = run(lambda: clip(24.0), [], {"key_every": 3})
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def verdicts(fleet: OneProcessFleet) -> list[Verdict]:
    """The answers to the question, as the past has them."""
    return replayed(fleet, CROWD)[0]


@pytest.fixture(scope="module")
def labels(verdicts: Sequence[Verdict]) -> list[Label]:
    """Of single windows, two right and two wrong, and one of a camera that was never seen."""
    answers = [verdict for verdict in verdicts if verdict.HasField("p_yes")]
    chosen = [
        Label(
            camera=verdict.camera,
            watch="crowd",
            incident=f"window-{verdict.window}",
            right=place % 2 == 0,
            question=CROWD.question,
            start=verdict.start,
            end=verdict.end,
        )
        for place, verdict in enumerate(answers[2:6])
    ]
    elsewhere = Label(camera="yard", watch="crowd", incident="other", right=True, question=CROWD.question)
    elsewhere.end.CopyFrom(chosen[0].end)
    return [*chosen, elsewhere]


def strangers(fleet: OneProcessFleet) -> list[Verdict]:
    """Verdicts that no prefill wrote: of no outcome, of one that there is not, of another camera's key."""
    camera, epoch = fleet.tokens[0].camera, fleet.tokens[0].epoch
    unknown = [Verdict(camera=camera, epoch=epoch, window=window) for window in (2, 900)]
    elsewhere = Verdict(camera="gate", epoch=epoch, window=3, outcome=Verdict.OUTCOME_GAP)
    return [*unknown, elsewhere]


@pytest.fixture(scope="module")
def kafka(fleet: OneProcessFleet, labels: Sequence[Label]) -> Iterator[str]:
    """A broker with what the fleet saw and what people said."""
    rows = [
        *((row.topic, 0, row.camera, row.value) for name in TOPICS for row in fleet.topics[name]),
        (VERDICTS.name, 0, "none", None),
        *((VERDICTS.name, 0, fleet.tokens[0].camera, to_json(verdict)) for verdict in strangers(fleet)),
        (ERASURES.name, 0, "none", None),
        *((LABELS.name, 0, label_key(entry), to_json(entry)) for entry in labels),
    ]
    with mock_kafka(rows) as address:
        yield address


@pytest.fixture(scope="module")
def kafka_of_jobs() -> Iterator[str]:
    """A broker with back-tests that asked no window."""
    rows = [(ERASURES.name, 0, "none", None)]
    for name, state in (
        ("nobody", RecordingAnswers.STATE_DONE),
        ("stopped", RecordingAnswers.STATE_CANCELLED),
        (LONG_JOB, RecordingAnswers.STATE_DONE),
    ):
        job = RecordingJob(id=name, backtest=BacktestJob(watch=Watch(question=CROWD.question)))
        job.backtest.watch.cameras.extend([name, "x" * 60] if name == LONG_JOB else [name])
        answers = RecordingAnswers(id=name, state=state, parts=2, backtest=BacktestAnswer(threshold=0.5))
        rows += [(RECORDINGS.name, 0, name, to_json(job)), (ANSWERS.name, 0, name, to_json(answers))]
    with mock_kafka(rows) as address:
        yield address


def asked(fleet: OneProcessFleet, kafka: str, *words: str) -> Result:
    own = [*(f"{name}={value:g}" for name, value in SAMPLING.items()), "prefill.key_every=3"]
    settings = [word for setting in own for word in ("--set", setting)]
    where = ["--bootstrap", kafka, "--model", str(fleet.model), *settings]
    rule = ["--threshold", THRESHOLD, "--since", "start"]
    return CliRunner().invoke(app, ["backtest", CROWD.question, *rule, *where, *words])


def scores_of(labels: Sequence[Label], verdicts: Sequence[Verdict]) -> list[LabelScore]:
    """What a job says of the labels."""
    seen = {entry.camera: [v for v in verdicts if v.camera == entry.camera] for entry in labels}
    return [score_of(entry, seen[entry.camera], messages.rule_of(CROWD.rule)) for entry in labels]


@pytest.mark.slow
def test_labels_give_precision_and_a_threshold(
    fleet: OneProcessFleet, kafka: str, labels: Sequence[Label], verdicts: Sequence[Verdict]
) -> None:
    result = asked(fleet, kafka, "--labels", "--precision", "0.5", "--json")
    assert result.exit_code == 0, result.output
    answer, scores = json.loads(result.stdout), scores_of(labels, verdicts)
    assert sum(score.HasField("score") for score in scores) == 4
    assert (answer["labels"], answer["labels_without_windows"]) == (5, 1)
    assert answer["quality"] == quality(scores, CROWD.rule.threshold).as_json()
    best = threshold_for(scores, 0.5)
    assert best is not None
    assert answer["for_precision"] == {"wanted": 0.5, "quality": best.as_json()}


@pytest.mark.slow
def test_a_back_test_here_says_its_seconds_and_its_share_of_live_cost(
    fleet: OneProcessFleet, kafka: str
) -> None:
    answer = json.loads(asked(fleet, kafka, "--json").stdout)
    assert answer["cpu_s"] > 0
    assert answer["cameras"] == 1
    assert answer["device_s"] == 0
    assert 0 < answer["share_of_live"] != answer["share_of_dense"] > 0
    assert "labels" not in answer
    text = asked(fleet, kafka, "--labels", "--precision", "1").stdout
    assert f"this back-test computed {answer['share_of_live']:.1%} of that cost" in text
    assert f"{answer['share_of_dense']:.1%} of the cost of computing every window in full" in text
    assert "s of processor time" in text
    assert "labels: 2 right, 2 wrong, 1 without a window" in text
    assert "precision of 1" in text


@pytest.mark.slow
def test_labels_that_are_not_there_are_named(fleet: OneProcessFleet, kafka: str) -> None:
    result = asked(fleet, kafka, "--labels", "--camera", "gate")
    assert "labels.v1 has 5 labels, but none for this question, these cameras" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--zone", " ".join(["0.1,0.1"] * 101)], "101 entries; the limit is 100"),
        (["--camera", "x" * 201], "201 characters; the limit is 200"),
        (["--since", "9" * 5000], "must be now, start, a duration"),
        (["--until", "9" * 5000 + "d"], "is not before --until"),
    ],
)
def test_what_a_watch_could_not_have_is_refused_at_once(words: list[str], why: str) -> None:
    result = CliRunner().invoke(app, ["backtest", CROWD.question, *words])
    assert isinstance(result.exception, LookoutError)
    assert why in str(result.exception)
    assert len(str(result.exception)) < 300


@pytest.mark.parametrize("where", [[], ["--fleet"]])
@pytest.mark.parametrize("since", ["2100-01-01", "2100-01-01T00:00:00Z"])
def test_a_time_that_has_not_come_is_refused_at_once(since: str, where: list[str]) -> None:
    result = CliRunner().invoke(app, ["backtest", CROWD.question, "--since", since, *where])
    assert f"--since {since} is in the future" in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_back_test_that_saw_no_window_says_so(fleet: OneProcessFleet, kafka: str, words: list[str]) -> None:
    result = asked(fleet, kafka, "--camera", "nobody", "--camera", "no-*", *words)
    assert isinstance(result.exception, LookoutError)
    assert "no window of cameras nobody, no-* was asked" in str(result.exception)
    assert [json.loads(line)["cameras"] for line in result.stdout.splitlines()] == [0] * len(words)


def test_the_answer_of_a_job_without_a_window_says_so(kafka_of_jobs: str) -> None:
    result = CliRunner().invoke(app, ["backtests", "show", "nobody", "--bootstrap", kafka_of_jobs])
    assert "no window of camera nobody was asked" in str(result.exception)
    assert result.stdout == ""
    result = CliRunner().invoke(app, ["backtests", "show", "stopped", "--bootstrap", kafka_of_jobs])
    assert str(result.exception) == "job stopped cancelled: 0 of 2 parts have an outcome"
    assert result.stdout == ""


def test_a_list_of_jobs_shows_ids_that_can_be_copied(kafka_of_jobs: str) -> None:
    words = ["backtests", "list", "--bootstrap", kafka_of_jobs]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert LONG_JOB in result.stdout.split()


def test_precision_needs_labels() -> None:
    result = CliRunner().invoke(app, ["backtest", CROWD.question, "--precision", "0.9"])
    assert "--precision needs --labels" in str(result.exception)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("backtest", "--camera"),
        ("backtest", "--id"),
        ("backtest", "--tenant"),
        ("analyze", "--id"),
        ("analyze", "--tenant"),
    ],
)
def test_a_word_in_another_encoding_is_refused_by_its_option(command: str, option: str) -> None:
    asked = {"backtest": ["Is it?"], "analyze": [__file__, "-q", "Is it?"]}[command]
    error = CliRunner().invoke(app, [command, *asked, "--fleet", option, "caf\udce9"]).exception
    assert isinstance(error, CliError)
    assert str(error) == f"{option}: caf\\udce9 is not valid UTF-8"
