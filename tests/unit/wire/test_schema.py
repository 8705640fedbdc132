"""The published JSON Schema: current, and true of what is written and of every example on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google.protobuf.message import Message
from jsonschema import Draft202012Validator

from lookout.v1.access_pb2 import AuditEntry
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.labels_pb2 import Label
from lookout.v1.notifications_pb2 import Notification, NotificationEvent
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import from_json, to_json
from protos.analysis_schema import FILE, analysis_schema
from protos.message_schemas import PUBLISHED, schemas

ROOT = Path(__file__).parents[3]
MESSAGES: dict[str, type[Message]] = {
    "watch": Watch,
    "camera": Camera,
    "verdict": Verdict,
    "alert": Alert,
    "label": Label,
    "incident-action": IncidentAction,
    "audit-entry": AuditEntry,
    "notification": Notification,
    "notification-event": NotificationEvent,
    "recording-job": RecordingJob,
    "recording-answers": RecordingAnswers,
}
EXAMPLES = dict(re.findall(r'```json title="([\w-]+)"\n(.*?)```', (ROOT / "docs/wire.md").read_text(), re.S))


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, object]]:
    return schemas(ROOT / "protos")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_file_is_current(name: str, made: dict[str, dict[str, object]]) -> None:
    kept = json.loads((ROOT / "docs/schemas" / f"{name}.json").read_text())
    assert kept == made[name], "run `make protos`"


def test_the_published_schema_of_analysis_is_current() -> None:
    stored = json.loads((ROOT / "docs/schemas" / FILE).read_text())
    assert stored == analysis_schema(), "run `make protos`"
    Draft202012Validator.check_schema(stored)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_example_on_the_page_is_whole_and_valid(name: str, made: dict[str, dict[str, object]]) -> None:
    strict = {**made[name], "additionalProperties": False}
    example = json.loads(EXAMPLES[name])
    Draft202012Validator(strict).validate(example)
    message = from_json(EXAMPLES[name].encode(), MESSAGES[name])
    Draft202012Validator(strict).validate(json.loads(to_json(message)))
    assert message == from_json(to_json(message), MESSAGES[name])
    missing = {field.name for field in message.DESCRIPTOR.fields} - set(example)
    assert missing <= {
        "answers",  # of structured questions
        "audit",
        "description",
        "activity",
        "activity_rows",
        "activity_cols",
        "cause",
        "reason",
        "tenant",  # the default
        "snoozed_until",
        "action",  # an event tells of an alert, or of an act
        *("apprise", "mqtt", "push"),  # one channel
        "text",  # only a report has it
        "opinion",  # only an incident of a watch that asks for one has it
        "backtest",  # a job is about recordings, or a back-test
    }


@pytest.mark.parametrize(
    ("example", "name"), [("backtest-job", "recording-job"), ("backtest-answers", "recording-answers")]
)
def test_the_examples_of_a_back_test_are_valid(
    example: str, name: str, made: dict[str, dict[str, object]]
) -> None:
    strict = {**made[name], "additionalProperties": False}
    message = from_json(EXAMPLES[example].encode(), MESSAGES[name])
    Draft202012Validator(strict).validate(json.loads(EXAMPLES[example]))
    assert message.HasField("backtest")
    assert message == from_json(to_json(message), MESSAGES[name])
