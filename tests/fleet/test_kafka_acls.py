"""A broker that checks rights: each service as a principal with the rights of docs/kubernetes.md only."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lookout.cli.connect import reading
from lookout.cli.fleet_jobs import read_jobs
from lookout.cli.options import Position
from lookout.local import RECORDINGS_ROLES, Fleet, KafkaServer, free_ports
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.models.families.layout import load_layout
from lookout.models.windows import Planner
from lookout.past.find.records import KafkaRecords
from lookout.runtime.worker import ServiceSettings, Table, load_settings
from lookout.runtime.worker.startup import check_kafka
from lookout.services.controller import topics as topics_job
from lookout.services.controller.activity import ActivityFollower
from lookout.services.controller.settings import ControllerSettings
from lookout.services.recall.settings import RecallSettings
from lookout.streams.chains import windows_of
from lookout.v1.recordings_pb2 import BacktestJob, RecordingAnswers, RecordingJob, RecordingSettings
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.segments import cut
from lookout.wire import (
    ALERTS,
    CAMERAS,
    CANARY_STAGES,
    CANARY_VERDICTS,
    MASKS,
    MAX_MESSAGE_BYTES,
    NOTIFICATIONS,
    RECORDINGS,
    SEGMENTS,
    TOKENS,
    VERDICTS,
    WATCHES,
    Stage,
    all_topics,
    prefixed,
    to_json,
)
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_records import BEGIN_MS, alert, publish, verdict

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(600)]

DOCS = Path(__file__).parents[2] / "docs" / "kubernetes.md"
PASSWORD = "a-long-password"
OF_THE_JOB = (
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
SECONDS = 12
BEGIN, END = (
    datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).isoformat()
    for at_ms in (BEGIN_MS, BEGIN_MS + 600_000)
)
LOGGING = """
appender.denied.type = File
appender.denied.name = denied
appender.denied.fileName = {file}
appender.denied.layout.type = PatternLayout
appender.denied.layout.pattern = %m%n
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = INFO
logger.authorizer.appenderRef.denied.ref = denied
rootLogger.level = WARN
appender.console.type = Console
appender.console.name = console
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True)
class Rights:
    """One row of the table in docs/kubernetes.md."""

    reads: tuple[str, ...]
    described_topics: tuple[str, ...]
    writes: tuple[str, ...]
    groups: tuple[str, ...]
    described: tuple[str, ...]
    transactions: tuple[str, ...]


def table() -> dict[str, Rights]:
    """The rows of services; a name that ends with a star is a prefix."""
    rows = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] not in ("service", "---"):
            groups, _, described = cells[3].partition("; describes ")
            reads, _, seen = cells[1].partition("; describes ")
            named = (_names(cell) for cell in (reads, seen, cells[2], groups, described, cells[4]))
            rows[cells[0]] = Rights(*named)
    return rows


def _names(cell: str) -> tuple[str, ...]:
    return tuple(prefixed(name) for name in re.findall(r"`([^`]+)`", cell))


def bindings(user: str, rights: Rights) -> Iterator[AclBinding]:
    """What Kafka is told for one principal."""
    topics = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    for names, kind, operations in (
        (rights.reads, ResourceType.TOPIC, (AclOperation.READ, *topics)),
        (rights.described_topics, ResourceType.TOPIC, topics),
        (rights.writes, ResourceType.TOPIC, (AclOperation.WRITE, *topics)),
        (rights.groups, ResourceType.GROUP, (AclOperation.READ, AclOperation.DESCRIBE)),
        (rights.described, ResourceType.GROUP, (AclOperation.DESCRIBE,)),
        (
            rights.transactions,
            ResourceType.TRANSACTIONAL_ID,
            (AclOperation.WRITE, AclOperation.DESCRIBE),
        ),
    ):
        for name in names:
            for operation in operations:
                yield binding(user, kind, name, operation)


def binding(user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    prefixed = name.endswith("*") and name != "*"
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    name = name.removesuffix("*") or "*"
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


@dataclass(frozen=True)
class Guarded:
    """A broker that checks rights.

    Attributes:
        folder: With one file `password`.
        open: Address at which everything is allowed.
        checked: Address that asks for SCRAM and checks rights.
        denied: What the broker refused, one line each.
    """

    folder: Path
    open: str
    checked: str
    denied: Path

    def settings(self, user: str) -> dict[str, str]:
        """Settings of a principal, without the LOOKOUT_ prefix."""
        return {
            "bootstrap": self.checked,
            "kafka_protocol": "sasl_plaintext",
            "kafka_username": user,
            "kafka_password_file": str(self.folder / "password"),
        }

    def environment(self, user: str) -> dict[str, str]:
        """The same as environment variables of a service of this machine."""
        return {f"LOOKOUT_{key.upper()}": value for key, value in self.settings(user).items()} | {
            "LOOKOUT_MODE": "local",
            "LOOKOUT_INSTANCE": f"{user}-0",
        }

    def kafka(self, user: str) -> dict[str, object]:
        """librdkafka options of a principal."""
        return load_settings(ServiceSettings, self.environment(user)).kafka()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Users and rights as the table has them; the try-out listener may do everything."""
    folder = tmp_path_factory.mktemp("acls")
    (folder / "password").write_text(PASSWORD)
    denied = folder / "denied.log"
    (folder / "log4j2.properties").write_text(LOGGING.format(file=denied))
    (port,) = free_ports(1)
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CHECKED:SASL_PLAINTEXT",
        "listener.name.checked.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.checked.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}")
        with KafkaServer(properties=properties, listeners={"CHECKED": port}) as server:
            found = Guarded(folder, server.bootstrap, f"127.0.0.1:{port}", denied)
            _introduce(AdminClient({"bootstrap.servers": server.bootstrap}))
            yield found


def _introduce(admin: AdminClient) -> None:
    rows = table()
    users = [
        UserScramCredentialUpsertion(
            user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        for user in (*rows, "topics")
    ]
    for done in admin.alter_user_scram_credentials(users).values():
        done.result(60)
    rights = {each for user, row in rows.items() for each in bindings(user, row)}
    rights |= {binding("topics", ResourceType.TOPIC, "*", operation) for operation in OF_THE_JOB}
    rights.add(binding("gateway", ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS))
    for done in admin.create_acls(list(rights)).values():
        done.result(60)


def produce(options: Mapping[str, object], topic: str, key: str, values: list[bytes | None]) -> None:
    """Send records and raise what Kafka says against them."""
    failed = []
    producer = Producer(
        {**options, "enable.idempotence": True, "message.max.bytes": MAX_MESSAGE_BYTES, "log_level": 0}
    )
    for value in values:
        producer.produce(topic, value, key=key, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60.0) == 0
    if errors := [error for error in failed if error is not None]:
        raise KafkaException(errors[0])


@contextmanager
def acting_as(guarded: Guarded, user: str) -> Iterator[None]:
    """This process's environment is that of a principal."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in guarded.environment(user).items():
            patch.setenv(name, value)
        yield


@contextmanager
def fleet(guarded: Guarded, canary: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """The four services, those of recordings and of a canary, each with its own principal."""
    own = {name: guarded.settings(name) for name in (*map(str, Stage), *RECORDINGS_ROLES, *CANARY_STAGES)}
    running = Fleet(
        kafka=guarded.checked,
        settings={"model_dir": str(TINY)},
        stage_settings=own,
        recordings=[film().parent],
        canary=canary,
    )
    try:
        with acting_as(guarded, "topics"):
            running.start()
        yield running
    finally:
        running.close()


def film() -> Path:
    (path,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    return path


def segments() -> list[bytes]:
    return [each.data for each in cut(film()) if each.start_us < SECONDS * 1e6]


def jobs(watch: Watch) -> list[RecordingJob]:
    """One about a recording, one about what the camera saw."""
    settings = RecordingSettings(fps=1, part_frames=8, end_s=24)
    return [
        RecordingJob(id="film", uris=[film().as_uri()], questions=[watch.question], settings=settings),
        RecordingJob(id="past", backtest=BacktestJob(watch=watch)),
    ]


def verdicts(guarded: Guarded, least: int) -> list[Mapping[str, object]]:
    """So many verdicts at least, as the broker's owner reads them."""
    found: list[Mapping[str, object]] = []
    deadline = time.monotonic() + 240
    with reading(guarded.open, [VERDICTS.name], Position(oldest=True)) as reader:
        while len(found) < least:
            assert time.monotonic() < deadline, found
            if (message := reader.poll(0.5)) is not None:
                found.append(json.loads(message.value()))
    return found


def compare_canary(guarded: Guarded, windows: int) -> None:
    """A canary of the same model answers as many windows, and a person with the rights for it compares."""
    with reading(guarded.open, [CANARY_VERDICTS.name], Position(oldest=True)) as reader:
        for _ in range(windows):
            eventually(lambda: reader.poll(0.5) is not None)
    (person,) = (user for user in table() if user.startswith("people who compare"))
    words = ("canary", "--windows", "1", "--unanswered", "1", "--bootstrap", guarded.checked)
    assert command(person, guarded, "", *words).startswith("promote")


def ended(guarded: Guarded, job: str) -> RecordingAnswers:
    """The answers of a job, as the broker's owner reads them."""

    def over() -> RecordingAnswers | None:
        answers = read_jobs(guarded.open)[job].answers
        running = (None, RecordingAnswers.STATE_RUNNING)
        return None if answers is None or answers.state in running else answers

    answers = eventually(over, every=0.5)
    assert answers is not None
    return answers


def test_a_segment_is_answered_with_the_rights_of_the_table(guarded: Guarded) -> None:
    with acting_as(guarded, "topics"):
        for _ in range(2):  # makes them, then compares them
            assert topics_job.main(["--partitions=2", "--replication=1", "--canary"]) == 0
    agent = load_settings(ServiceSettings, guarded.environment("camera-agent"))
    controller = load_settings(ControllerSettings, guarded.environment("controller"))
    with fleet(guarded, canary={"canary": "1"}):
        watches = [Table(controller, topic.name) for topic in (WATCHES, CAMERAS, NOTIFICATIONS)]
        for each in watches:
            each.start(60.0)
        activity = ActivityFollower(controller, lambda _: None)
        activity.start()
        rule = Rule(threshold=0.5, k=2, n=3)
        watch = Watch(id="person", version=1, question=DEMO_QUESTIONS["person"], rule=rule)
        produce(guarded.kafka("controller"), WATCHES.name, watch.id, [to_json(watch)])
        eventually(lambda: watches[0].view().newest("person") is not None)
        produce(guarded.kafka("controller"), NOTIFICATIONS.name, "guards", [None])

        assert check_kafka(agent, (CAMERAS, MASKS, SEGMENTS)) == 2
        cameras, masks = Table(agent, CAMERAS.name), Table(agent, MASKS.name)
        for each in (cameras, masks):
            each.start(60.0)
        produce(guarded.kafka("camera-agent"), SEGMENTS.name, "room", segments())

        found = verdicts(guarded, 3)
        assert {each["outcome"] for each in found} == {"answered"}
        compare_canary(guarded, len(found))
        with reading(guarded.open, [ALERTS.name], Position(oldest=True)) as reader:
            eventually(lambda: reader.poll(0.5) is not None)
        eventually(lambda: "lastVerdict" in activity.status("person", 0))
        for job in jobs(watch):
            produce(guarded.kafka("controller"), RECORDINGS.name, job.id, [to_json(job)])
            answers = ended(guarded, job.id)
            assert answers.state == RecordingAnswers.STATE_DONE, answers
            assert answers.done == answers.parts > 0
            assert answers.backtest.incidents_total or answers.recordings[0].answers
        activity.stop()
        for each in (*watches, cameras, masks):
            each.stop()
    assert guarded.denied.read_text() == ""


def test_a_gateway_reads_and_writes_with_the_rights_of_the_table(
    guarded: Guarded, redis_url: str, tmp_path: Path
) -> None:
    with acting_as(guarded, "topics"):
        assert topics_job.main(["--partitions=2", "--replication=1"]) == 0
    guarded.denied.write_text("")
    process = GatewayProcess(tmp_path, guarded.checked, redis_url, guarded.settings("gateway"))
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    try:
        process.start()
        with process.signed_in() as client:
            watch = {"question": "Is the gate open?", "cameras": ["gate"]}
            assert client.put("/v1/watches/gate-open", json=watch).status_code == 200
            token = {"name": "robot", "role": "viewer"}
            assert client.post("/v1/tokens", json=token).status_code == 201
            # A camera of its own: the topics hold other tests' incidents, which have pictures.
            publish(guarded.open, [alert("side-gate", 0), verdict("side-gate", 0)])
            own = {"camera": "side-gate"}
            (incident,) = eventually(lambda: client.get("/v1/incidents", params=own).json().get("incidents"))
            act = client.post(f"/v1/incidents/{incident['id']}/actions", json={"kind": "claim"})
            assert act.status_code == 200, act.text
            opinion = {"incident": incident["id"], "right": True}
            assert client.post("/v1/labels", json=opinion).status_code == 200
            read = client.get("/v1/verdicts", params={"camera": "side-gate", "since": BEGIN, "until": END})
            assert read.status_code == 200, read.text
            shown = client.get("/v1/fleet").json()
            assert {row["group"] for row in shown["lag"]} >= {"decode", "recordings"}
            found = {row["about"]: row["state"] for row in shown["findings"]}
            assert found["Kafka"] == found["topics"] == "ok"
            erasure = {"camera": "yard", "since": begin.isoformat()}
            assert client.post("/v1/erasures", json=erasure).status_code in (200, 201, 202)
            assert client.get(f"/v1/incidents/{incident['id']}/picture.jpg").status_code == 404
    finally:
        process.close()
    assert guarded.denied.read_text() == ""


def test_a_search_reads_with_the_rights_of_recall(guarded: Guarded) -> None:
    settings = load_settings(RecallSettings, guarded.environment("recall"))
    planner = Planner(load_layout(TINY), windows_of(settings))
    with KafkaRecords(settings, planner) as records:
        found = records.all(["*"], 0, round(time.time() * 1000))
        assert not isinstance(found, str)
        for epoch in found:
            at_ms = epoch.end_ms(max(epoch.blocks))
            assert records.near(epoch.camera, at_ms, at_ms + 1)
        assert found  # the cameras of the tests before


def test_rights_to_names_with_a_prefix_are_enough_for_a_release_with_one() -> None:
    """The test above in a process of its own: names get their prefix when it starts."""
    test = f"{__file__}::{test_a_segment_is_answered_with_the_rights_of_the_table.__name__}"
    options = ["-q", "-x", "-n0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, test],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "LOOKOUT_PREFIX": "site-a."},
    )
    assert done.returncode == 0, done.stdout[-4000:]


def command(user: str, guarded: Guarded, token: str, *words: str) -> str:
    """Standard output of a command that a principal runs with the fleet's token."""
    environment = {**os.environ, **guarded.environment(user), "LOOKOUT_GRPC_TOKEN_FILE": token}
    done = subprocess.run(
        [sys.executable, "-m", "lookout.cli", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_camera_is_erased_with_the_rights_of_the_table(guarded: Guarded, tmp_path: Path) -> None:
    with acting_as(guarded, "topics"):
        assert topics_job.main(["--partitions=2", "--replication=1"]) == 0
    denied = guarded.denied.read_text()
    (person,) = (user for user in table() if user.startswith("people who erase"))
    place = "--bootstrap", guarded.checked
    with fleet(guarded) as running:
        token = running.address.grpc_token_file or ""
        produce(guarded.kafka("camera-agent"), SEGMENTS.name, "yard", segments())
        with reading(guarded.open, [TOKENS.name], Position(oldest=True)) as reader:
            eventually(lambda: (record := reader.poll(0.5)) is not None and record.key() == b"yard")
        words = ("erase", "--camera", "yard", "--yes", "--wait", "240", *place)
        identity = command(person, guarded, token, *words).split()[0]
        key = ("--key", str(tmp_path / "key.pem"))
        receipt = json.loads(command(person, guarded, token, "erase", "--receipt", identity, *key, *place))
        assert receipt["complete"], receipt
        assert {"decode", "prune-encode", "prefill"} <= {each["service"] for each in receipt["erased"]}
    assert guarded.denied.read_text() == denied


@pytest.mark.parametrize("user", [user for user, rights in table().items() if rights.writes])
def test_a_principal_writes_the_topics_of_its_row_and_no_others(guarded: Guarded, user: str) -> None:
    with acting_as(guarded, "topics"):
        assert topics_job.main(["--partitions=2", "--replication=1"]) == 0
    outcomes: dict[str, str] = {}
    producer = Producer({**guarded.kafka(user), "log_level": 0})
    others = [topic.name for topic in all_topics() if topic.name not in table()[user].writes]
    assert others
    for topic in others:

        def done(error: object, _: object, topic: str = topic) -> None:
            outcomes[topic] = "written" if error is None else str(error)

        producer.produce(topic, b"x", key="x", on_delivery=done)
    assert producer.flush(60.0) == 0
    assert set(outcomes) == set(others)
    allowed = [topic for topic, outcome in outcomes.items() if "uthoriz" not in outcome.replace("_", "")]
    assert not allowed, outcomes


@pytest.mark.parametrize(
    ("user", "topic"), [("alerts", SEGMENTS.name), ("camera-agent", WATCHES.name), ("decode", VERDICTS.name)]
)
def test_what_the_table_does_not_name_is_refused(guarded: Guarded, user: str, topic: str) -> None:
    with pytest.raises(KafkaException, match=r"TOPIC_AUTHORIZATION_FAILED|not authorized|Authorization"):
        produce(guarded.kafka(user), topic, "x", [b"x"])
    assert f"User:{user}" in guarded.denied.read_text()
