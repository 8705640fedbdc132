"""What a tenant's jobs may use together: a job beyond that is refused, and says what there is too much of."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.errors import StartupError
from lookout.recordings.analysis import Analyzer
from lookout.runtime.worker import load_settings
from lookout.services.recordings.quotas import JobQuota, RunningJobs, Use, quota_of
from lookout.services.recordings.settings import RecordingsSettings
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob, RecordingSettings
from tests.unit.services.recordings_case import FakeTable, Services
from tests.unit.video.segments.clips import encode

SETTINGS = RecordingSettings(fps=5, part_frames=8, group_frames=3)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "clip.mp4"
    path.write_bytes(encode("mp4", frames=60, speed=1))  # six seconds: four parts
    return path


def job(clip: Path, identity: str, tenant: str = "") -> RecordingJob:
    """Two questions about four parts."""
    questions = ["Is anyone there?", "Is it dark?"]
    return RecordingJob(
        id=identity, tenant=tenant, uris=[clip.as_uri()], questions=questions, settings=SETTINGS
    )


def ask(services: Services, clip: Path, identity: str, tenant: str = "") -> RecordingAnswers:
    """The first answer of a job."""
    services.ask(job(clip, identity, tenant))
    return services.answers(identity)


@pytest.mark.long
@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (
            JobQuota(jobs=1),
            "jobs: this job needs 1 and the 1 running jobs use 1, but the quota is 1",
        ),
        (JobQuota(parts=7), "parts: this job needs 4 and the 1 running jobs use 4, but the quota is 7"),
        (
            JobQuota(seconds=11.5),
            "seconds: this job needs 6 and the 1 running jobs use 6, but the quota is 11.5",
        ),
        (
            JobQuota(questions=3),
            "questions: this job needs 2 and the 1 running jobs use 2, but the quota is 3",
        ),
    ],
)
def test_a_job_beyond_its_tenants_quota_is_refused(
    analyzer: Analyzer, clip: Path, quota: JobQuota, said: str
) -> None:
    services = Services(analyzer, clip.parent, quotas={"acme": quota})
    assert ask(services, clip, "first", "acme").state == RecordingAnswers.STATE_RUNNING
    refused = ask(services, clip, "second", "acme")
    assert refused.state == RecordingAnswers.STATE_REFUSED
    assert refused.reason.startswith(f"tenant acme: {said}"), refused.reason
    assert "LOOKOUT_JOB_QUOTAS" in refused.reason
    # Others' jobs are their own matter.
    assert ask(services, clip, "theirs").state == RecordingAnswers.STATE_RUNNING
    # What has ended counts no more, and the id of a refused job is free.
    cancelled = job(clip, "first", "acme")
    cancelled.cancelled = True
    services.ask(cancelled)
    assert services.answers("first").state == RecordingAnswers.STATE_CANCELLED
    assert ask(services, clip, "second", "acme").state == RecordingAnswers.STATE_RUNNING
    services.parts_handler.close()


@pytest.mark.slow
def test_requests_that_come_together_are_counted(analyzer: Analyzer, clip: Path) -> None:
    """The second one is planned before the first one's outcome was collected."""
    services = Services(analyzer, clip.parent, quotas={"*": JobQuota(jobs=1)})
    catch_up, services.reduce.catch_up = services.reduce.catch_up, lambda topic: None  # type: ignore[method-assign]
    for identity in ("a", "b", "a"):
        services.ask(job(clip, identity))
    services.reduce.catch_up = catch_up  # type: ignore[method-assign]
    services.work()
    assert services.answers("a").state == RecordingAnswers.STATE_DONE
    assert services.answers("b").state == RecordingAnswers.STATE_REFUSED
    services.parts_handler.close()


@pytest.mark.slow
def test_a_quota_of_nothing_refuses_all_of_a_tenant(analyzer: Analyzer, clip: Path) -> None:
    services = Services(analyzer, clip.parent, quotas={"*": JobQuota(jobs=0), "acme": JobQuota()})
    assert (
        "jobs: this job needs 1 and the 0 running jobs use 0, but the quota is 0"
        in ask(services, clip, "a").reason
    )
    assert ask(services, clip, "b", "acme").state == RecordingAnswers.STATE_RUNNING


def test_a_tenant_whose_name_is_none_is_refused(analyzer: Analyzer, clip: Path) -> None:
    services = Services(analyzer, clip.parent)
    answers = ask(services, clip, "a", "no name!")
    assert answers.state == RecordingAnswers.STATE_REFUSED
    assert "tenant 'no name!'" in answers.reason


def test_a_job_whose_checkpoint_cannot_be_read_does_not_count(analyzer: Analyzer, clip: Path) -> None:
    services = Services(analyzer, clip.parent)
    ask(services, clip, "a")
    table = FakeTable(services.reduce)
    assert RunningJobs(table).running("default", "") == Use(1, 4, 6.0, 2)
    table.newest = lambda key: b"\xff"  # type: ignore[method-assign]
    assert RunningJobs(table).running("default", "") == Use()


def test_quotas_are_read_from_the_environment() -> None:
    text = '{"*": {"jobs": 2}, "acme": {"parts": 0, "seconds": 1.5}}'
    settings = load_settings(RecordingsSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_JOB_QUOTAS": text})
    assert quota_of(settings.job_quotas, "acme") == JobQuota(parts=0, seconds=1.5)
    assert quota_of(settings.job_quotas, "default") == JobQuota(jobs=2)
    assert quota_of({}, "default") == JobQuota()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("acme=3", "not valid JSON"),
        ("[]", "it must be an object"),
        ('{"acme": {"job": 1}}', "acme.job: there is no such field"),
        ('{"acme": {"jobs": -1}}', "a number of at least 0 is expected, not -1"),
        ('{"acme": {"seconds": NaN}}', "finite"),
        ('{"no name!": {"jobs": 1}}', "tenant 'no name!'"),
        ('{"": {"jobs": 1}}', "tenant"),
        ('{"Acme": {"jobs": 1}}', "tenant 'Acme'"),
        ('{"acme": {"jobs": 1}, "acme": {"jobs": 2}}', "acme occurs twice"),
        ('{"acme": {"jobs": ' + "9" * 5000 + "}}", "digits"),
    ],
)
def test_quotas_that_make_no_sense_are_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(StartupError, match="LOOKOUT_JOB_QUOTAS") as error:
        load_settings(RecordingsSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_JOB_QUOTAS": text})
    assert why in str(error.value)
