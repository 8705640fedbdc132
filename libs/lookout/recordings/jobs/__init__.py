"""Jobs: questions about recordings as messages. Contains requests, plans, parts, outcomes, and the sources of
recordings."""

from lookout.recordings.jobs.answers import analysis_of as analysis_of, answers_of as answers_of
from lookout.recordings.jobs.outcomes import (
    outcome_of as outcome_of,
    part_of as part_of,
    unanswered as unanswered,
)
from lookout.recordings.jobs.plans import (
    expiry_of as expiry_of,
    has_parts as has_parts,
    job_digest as job_digest,
    plan_job as plan_job,
    planned_part as planned_part,
    refused as refused,
    settings_message as settings_message,
    settings_of as settings_of,
)
from lookout.recordings.jobs.ranges import SourceError as SourceError
from lookout.recordings.jobs.requests import JobError as JobError, check_job as check_job
from lookout.recordings.jobs.sources import OpenSource as OpenSource, Sources as Sources
