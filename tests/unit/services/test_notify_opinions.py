"""Second opinions: asked once, before anyone is told; whatever goes wrong, people are told."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lookout.errors import StartupError
from lookout.rules import NO_SECOND_MODEL
from lookout.runtime.worker import Supervisor, load_settings
from lookout.services.notify import opinions
from lookout.services.notify.composing import sentence
from lookout.services.notify.engine import BUDGET, Engine
from lookout.services.notify.opinions import INTERRUPTED, Asker, Endpoints
from lookout.services.notify.settings import NotifySettings
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.v1.watches_pb2 import SEVERITY_UNSPECIFIED
from tests.eventually import eventually
from tests.fleet.notify_case import act, alert, webhook
from tests.second_model import PICTURE, SecondModel

OPENED, UPDATED, CLOSED = Alert.KIND_OPENED, Alert.KIND_UPDATED, Alert.KIND_CLOSED
YES = SecondOpinion(answer=SecondOpinion.ANSWER_YES, model="big", seconds=1.5, tokens=9)
NO = SecondOpinion(answer=SecondOpinion.ANSWER_NO, model="big", seconds=1.5)
SECRET = "sk-a-key-of-the-tests"


def engine(daily: int = 9, fault: str | None = None, **more: float) -> Engine:
    told = {"a": webhook("a", "http://a", **more)}
    return Engine(
        lambda: told,
        lambda _: SEVERITY_UNSPECIFIED,
        verifies=lambda watch: watch.startswith("fall"),
        fault=lambda watch: fault if watch == "fall" else None,
        daily=daily,
    )


def test_nobody_is_told_before_the_answer_and_then_with_it() -> None:
    book = engine()
    assert book.take(alert(1, OPENED), 1, 3)[0] == []
    assert book.take(alert(1, UPDATED, 1), 2)[0] == []
    assert [question.incident for question in book.questions()] == ["incident-1"]
    assert (book.questions(), list(book.waiting())) == ([], [])
    opened, updated = book.opine("incident-1", YES)
    assert [opened.happened.id, updated.happened.id] == [alert(1, OPENED).id, alert(1, UPDATED, 1).id]
    assert isinstance(opened.happened, Alert)
    assert opened.happened.opinion == YES
    assert sentence(opened.happened).endswith("A second model agrees (big, 1.5 s).")
    ((partition, event),) = book.opinions()
    assert (partition, event.kind, event.incident, event.opinion) == (
        3,
        Alert.KIND_OPINION,
        "incident-1",
        YES,
    )
    assert book.take(event, 3) == ([], [])  # its own event comes back to it
    (closed,) = book.take(alert(1, CLOSED, 2), 4)[0]
    assert isinstance(closed.happened, Alert)
    assert closed.happened.opinion == YES
    assert book.opine("incident-1", NO) == []  # one incident has one opinion


def test_of_a_no_nobody_is_told() -> None:
    book = engine()
    book.take(alert(1, OPENED), 1)
    assert book.opine("incident-1", NO) == []
    assert book.take(alert(1, UPDATED, 1), 2)[0] == book.take(alert(1, CLOSED, 2), 3)[0] == []
    late = engine(unclaimed_s=60)
    late.take(alert(1, OPENED), 1)
    assert late.due(60_001) == []  # it is not due before the answer
    late.opine("incident-1", NO)
    assert late.due(120_000) == []


def test_an_escalation_waits_for_the_answer() -> None:
    late = engine(unclaimed_s=60)
    late.take(alert(1, OPENED), 1)
    assert late.due(60_001) == []
    late.opine("incident-1", YES)
    assert [delivery.notification for delivery in late.due(60_002)] == ["a"]


@pytest.mark.parametrize("reason", [BUDGET, NO_SECOND_MODEL])
def test_without_a_second_model_people_are_told_at_once(reason: str) -> None:
    book = engine(1, None if reason == BUDGET else reason)
    if reason == BUDGET:
        book.take(alert(0, OPENED), 1)
    assert len(book.questions()) == (reason == BUDGET)
    (told,) = book.take(alert(7, OPENED), 2)[0]
    assert book.questions() == []
    assert isinstance(told.happened, Alert)
    assert f"No second opinion: {reason}" in sentence(told.happened)
    assert book.opinions()[-1][1].opinion.reason == reason
    book.take(alert(7, OPENED), 2)  # a copy
    assert (book.questions(), book.opinions()) == ([], [])
    # What was not asked takes nothing of the budget, and a day later one more may be asked.
    other = alert(8, OPENED)
    other.watch = "fall-of-another"
    book.take(other, 3 if reason != BUDGET else 86_400_002)
    assert len(book.questions()) == 1


def test_after_a_restart_none_is_asked_about_twice() -> None:
    before = engine()
    before.take(alert(1, OPENED), 1, 2)
    after = engine()
    for incident, state in before.changes().items():
        after.restore(incident, state)
    assert after.pending() == ["incident-1"]
    assert (after.questions(), list(after.waiting())) == ([], [])
    (told,) = after.opine("incident-1", INTERRUPTED)
    assert isinstance(told.happened, Alert)
    assert "not repeated" in sentence(told.happened)
    assert after.opinions()[0][0] == 2
    assert after.take(alert(1, OPENED), 3)[0] == []  # a copy
    assert after.questions() == []


def test_acts_and_other_watches_need_no_opinion() -> None:
    book = engine()
    other = alert(1, OPENED)
    other.watch = "other"
    assert len(book.take(other, 1)[0]) == 1
    assert len(book.take(act(2, 1), 1)[0]) == 1
    assert book.questions() == []


def endpoint(folder: Path, model: SecondModel, hosts: str = "127.0.0.1", *, many: bool = False) -> Endpoints:
    (folder / "key").write_text(SECRET)
    settings = load_settings(
        NotifySettings,
        {},
        mode="local",
        notify_hosts=hosts,
        notify_networks="127.0.0.0/8",
        notify_secrets=folder,
        opinion_url=f"{model.url}/v1",
        opinion_model="big",
        opinion_key="key",
    )
    return Endpoints(settings, lambda alert, count: [PICTURE] * (count if many else 1))


@pytest.mark.parametrize(
    ("status", "words", "answer", "reason"),
    [
        (200, "Yes", SecondOpinion.ANSWER_YES, ""),
        (200, "**no**, nobody", SecondOpinion.ANSWER_NO, ""),
        (200, "Nothing to see", SecondOpinion.ANSWER_NONE, "neither yes nor no"),
        (500, "", SecondOpinion.ANSWER_NONE, "status 500"),
        (401, "", SecondOpinion.ANSWER_NONE, "status 401"),
    ],
)
def test_what_the_endpoint_says(tmp_path: Path, status: int, words: str, answer: int, reason: str) -> None:
    with SecondModel(lambda question: (status, words)) as model:
        opinion = endpoint(tmp_path, model).opinion(alert(1, OPENED))
        assert (opinion.answer, opinion.model) == (answer, "big")
        assert reason in opinion.reason
        assert opinion.seconds > 0
        assert opinion.tokens == (321 if status == 200 else 0)
        assert model.keys == {f"Bearer {SECRET}"}
        assert SECRET not in str(opinion)
        content = model.asked[0]["messages"][0]["content"]
        assert content[0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
        assert content[1]["text"].startswith("Is anyone lying on the ground?")


@pytest.mark.parametrize(
    ("words", "answer", "reason"),
    [
        ("10", SecondOpinion.ANSWER_YES, ""),
        ("**1** person", SecondOpinion.ANSWER_NO, ""),
        ("Yes, many.", SecondOpinion.ANSWER_NONE, "none of the allowed answers"),
    ],
)
def test_a_question_with_allowed_answers_is_asked_and_read_by_them(
    tmp_path: Path, words: str, answer: int, reason: str
) -> None:
    happened = alert(1, OPENED)
    happened.question = "How many? [0, 1, 2, 10] when count >= 2"
    with SecondModel(lambda question: (200, words)) as model:
        opinion = endpoint(tmp_path, model).opinion(happened)
        assert (opinion.answer, opinion.text) == (answer, words)
        assert reason in opinion.reason
        asked = model.asked[0]["messages"][0]["content"][1]["text"]
        assert asked == "How many? Answer with one of: 0, 1, 2, 10."


def test_several_pictures_come_in_order_before_the_question(tmp_path: Path) -> None:
    with SecondModel() as model:
        endpoint(tmp_path, model, many=True).opinion(alert(1, OPENED))
        said, *pictures, question = model.asked[0]["messages"][0]["content"]
    assert said["text"].startswith("8 pictures of one camera, in order")
    assert [part["type"] for part in pictures] == ["image_url"] * 8
    assert question["text"].startswith("Is anyone lying on the ground?")


def test_a_host_that_is_not_allowed_is_not_asked(tmp_path: Path) -> None:
    with SecondModel() as model:
        opinion = endpoint(tmp_path, model, "model.example").opinion(alert(1, OPENED))
        assert opinion.answer == SecondOpinion.ANSWER_NONE
        assert "LOOKOUT_NOTIFY_HOSTS" in opinion.reason
        assert model.asked == []


def test_a_model_of_ones_own_needs_its_network_alone(tmp_path: Path) -> None:
    """Also where the process may resolve the hosts of notifications alone."""
    program = """
import sys
from pathlib import Path
from lookout.runtime.net.guarded_resolving import guard_process
from tests.unit.services.test_notify_opinions import OPENED, alert, own_model
url, networks = sys.argv[1:]
model = own_model(url, networks)
guard_process(model._allowed.__class__(("http",), ()))
opinion = model.opinion(alert(1, OPENED))
print(opinion.answer, opinion.reason)
"""
    with SecondModel() as model:
        url = model.url.replace("127.0.0.1", "localhost")
        for networks, answer, reason in (
            ("127.0.0.0/8,::1/128", SecondOpinion.ANSWER_YES, ""),
            ("10.0.0.0/8", SecondOpinion.ANSWER_NONE, "LOOKOUT_OPINION_NETWORKS"),
        ):
            command = [sys.executable, "-c", program, url, networks]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            assert said.startswith(str(answer))
            assert reason in said


def own_model(url: str, networks: str) -> Endpoints:
    """The endpoint of a model that no setting of notifications allows."""
    settings = load_settings(
        NotifySettings, {}, mode="local", opinion_url=url, opinion_model="own", opinion_networks=networks
    )
    return Endpoints(settings, lambda alert, count: [PICTURE])


def two_models(**more: object) -> NotifySettings:
    """Settings with two second models, one of which needs a key."""
    listed: dict[str, object] = {
        "opinion_url": "large=http://127.0.0.1:1/v1/, hosted=https://models.example/v1?a=b",
        "opinion_model": "large=Qwen/Qwen2.5-VL-7B-Instruct, hosted=gpt",
        "opinion_key": "hosted=key",
    }
    return load_settings(NotifySettings, {}, mode="local", **{**listed, **more})


def test_a_watch_asks_the_model_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    choices = {"fall": "hosted", "other": "", "wrong": "hostd"}
    with SecondModel() as large, SecondModel() as hosted:
        settings = two_models(
            opinion_url=f"large={large.url}/v1,hosted={hosted.url}/v1",
            opinion_networks="127.0.0.0/8",
            notify_secrets=tmp_path,
        )
        models = Endpoints(settings, lambda alert, count: [PICTURE], lambda watch: choices[watch])
        happened = alert(1, OPENED)
        assert models.fault(happened.watch) is None
        assert models.opinion(happened).model == "gpt"
        assert (len(large.asked), hosted.keys) == (0, {f"Bearer {SECRET}"})
        happened.watch = "other"
        assert models.opinion(happened).model == "Qwen/Qwen2.5-VL-7B-Instruct"
        assert (len(large.asked), large.keys) == (1, {""})
        happened.watch = "wrong"
        opinion = models.opinion(happened)
        assert opinion.reason == models.fault("wrong")
        assert "no second model is called 'hostd'" in opinion.reason
        assert "hosted, large" in opinion.reason
        assert (len(large.asked), len(hosted.asked)) == (1, 1)


def test_second_models_are_listed_by_name_and_in_order() -> None:
    models = two_models().second_models
    assert list(models) == ["large", "hosted"]
    assert (models["large"].url, models["large"].key) == ("http://127.0.0.1:1/v1", "")
    assert (models["hosted"].url, models["hosted"].key) == ("https://models.example/v1?a=b", "key")
    assert load_settings(NotifySettings, {}, mode="local").second_models == {}


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("opinion_url", "large=ftp://a/v1", "'ftp://a/v1' is not an http or https URL"),
        ("opinion_url", "http://a/v1,http://b/v1", "two values have the same name"),
        ("opinion_model", "large=a,hostd=b", "no second model called 'hostd'"),
        ("opinion_model", "large=a", "give the name of the model at https://models.example/v1?a=b"),
        ("opinion_key", "key", "no second model called ''"),
        ("opinion_key", "hosted=../key", "'../key' is not a file's name"),
    ],
)
def test_a_second_model_that_makes_no_sense_is_refused(setting: str, value: str, words: str) -> None:
    with pytest.raises(StartupError) as refused:
        two_models(**{setting: value})
    assert words in str(refused.value)
    assert setting in str(refused.value)


def test_an_endpoint_that_hangs_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinions, "ANSWER_S", 0.2)
    released = threading.Event()
    with SecondModel(lambda question: (200, str(released.wait(60)))) as model:
        opinion = endpoint(tmp_path, model).opinion(alert(1, OPENED))
        released.set()
    assert opinion.answer == SecondOpinion.ANSWER_NONE
    assert "Timeout" in opinion.reason


def test_a_question_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def opinion(question: Alert) -> SecondOpinion:
        if question.incident == "incident-0":
            released.wait(60)
        return YES

    now = [0.0]
    asker = Asker(opinion, Supervisor(), clock=lambda: now[0])
    for number in range(6):
        asker.ask(alert(number, OPENED))
    eventually(lambda: len(asker.opinions()) == 5, 60)
    assert "incident-0" in asker.asking() - asker.opinions().keys()
    released.set()
    eventually(lambda: len(asker.opinions()) == 6, 60)
    asker.forget(["incident-0"])
    assert asker.asking() == {f"incident-{number}" for number in range(1, 6)}


def test_a_question_that_waited_too_long_is_not_asked() -> None:
    asked: list[str] = []
    times = iter([0.0, opinions.WAIT_S + 1])
    asker = Asker(
        lambda question: (asked.append(question.incident), YES)[1], Supervisor(), clock=lambda: next(times)
    )
    asker.ask(alert(1, OPENED))
    eventually(lambda: bool(asker.opinions()), 60)
    assert "busy with other incidents" in asker.opinions()["incident-1"].reason
    assert asked == []
