"""Second opinions: asks another model about an incident's pictures before anyone is told."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Final

from lookout.rules import second_model_fault
from lookout.runtime.net.fetch import Deadline
from lookout.runtime.worker import Supervisor
from lookout.services.notify.channels.posting import request
from lookout.services.notify.messages import DeliveryError
from lookout.services.notify.secrets import Secrets
from lookout.services.notify.settings import NotifySettings, SecondModel
from lookout.structured import MAX_ANSWER, StructuredQuestion, structure_of
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert, SecondOpinion

#: time limit in seconds from the question to the answer, including fetching the pictures
ANSWER_S: Final = 30.0
#: maximum number of seconds that a question waits for a free thread before it is dropped
WAIT_S: Final = 30.0
_THREADS: Final = 4
_TOKENS: Final = 16
_BODY: Final = 1 << 20
_WORD: Final = re.compile(r"[^a-z]*(yes|no)\b", re.IGNORECASE)

INTERRUPTED: Final = SecondOpinion(
    answer=SecondOpinion.ANSWER_NONE,
    reason="the service ended before the second model answered, and the question is not repeated",
)


class Endpoints:
    """Asks second models at OpenAI-compatible endpoints (`/chat/completions`).

    Args:
        settings: The second models, and where notify may connect to.
        frames: Given an alert and a count, returns at most that many pictures of the incident (JPEG), the
            oldest first; empty if the gateway has none.
        choice: Returns the name of the second model that a watch asks; empty: the first model.
    """

    def __init__(
        self,
        settings: NotifySettings,
        frames: Callable[[Alert, int], Sequence[bytes]],
        choice: Callable[[str], str] = lambda watch: "",
    ) -> None:
        self._models, self._choice = settings.second_models, choice
        self._secrets, self._allowed = Secrets(settings.notify_secrets), settings.opinion_allowed()
        self._frames, self._count = frames, settings.opinion_frames

    def fault(self, watch: str) -> str | None:
        """Return why a watch cannot ask the second model that it names; None if it can."""
        return second_model_fault(self._choice(watch), self._models.keys())

    def opinion(self, alert: Alert) -> SecondOpinion:
        """Ask the second model of the alert's watch. If that fails, the opinion has no answer, only the
        reason.
        """
        begun = time.monotonic()
        opinion = SecondOpinion(answer=SecondOpinion.ANSWER_NONE)
        if fault := self.fault(alert.watch):  # the watch may have changed since the question was queued
            opinion.reason = fault
            return opinion
        model = self._models[self._choice(alert.watch) or next(iter(self._models))]
        opinion.model = model.model
        try:
            reply = self._ask(model, alert, Deadline(begun + ANSWER_S))
            _read(reply, opinion, structure_of(alert.question))
        except DeliveryError as error:
            opinion.reason = clean(str(error), 1000)
        except Exception as error:  # whatever fails, the incident is delivered without an opinion
            opinion.reason = clean(f"{type(error).__name__}: {error}", 300)
        opinion.seconds = round(time.monotonic() - begun, 3)
        return opinion

    def _ask(self, model: SecondModel, alert: Alert, deadline: Deadline) -> Any:
        """Send the question; return the endpoint's reply.

        Raises:
            DeliveryError: There are no pictures, the key cannot be read, or the endpoint does not answer.
        """
        pictures = self._frames(alert, self._count)
        if not pictures:
            raise DeliveryError(
                "the gateway has no picture of the incident, or LOOKOUT_LINK_KEY_FILE is not set"
            )
        body = json.dumps(_request(model.model, alert, pictures)).encode()
        headers = {"content-type": "application/json"}
        if model.key:
            headers["authorization"] = f"Bearer {self._secrets.read(model.key)}"
        url = f"{model.url}/chat/completions"
        host, status, reply = request(self._allowed, url, headers, body, limit=_BODY, deadline=deadline)
        if status != 200:
            raise DeliveryError(f"{host} answers with status {status}{_fault(reply)}")
        return json.loads(reply)


class Asker:
    """Asks second models on separate threads, so that an endpoint that hangs does not delay deliveries.

    Args:
        opinion: Asks about one incident; returns within `ANSWER_S` or so.
        supervisor: Starts the threads.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        opinion: Callable[[Alert], SecondOpinion],
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opinion, self._clock = opinion, clock
        self._questions: SimpleQueue[tuple[float, Alert]] = SimpleQueue()
        self._lock = threading.Lock()
        self._asking: set[str] = set()
        self._opinions: dict[str, SecondOpinion] = {}
        for number in range(_THREADS):
            supervisor.start(f"opinion-{number}", self._run)

    def ask(self, alert: Alert) -> None:
        """Queue a question about an incident."""
        with self._lock:
            self._asking.add(alert.incident)
        self._questions.put((self._clock(), alert))

    def asking(self) -> set[str]:
        """Return the incidents whose question is queued or in progress, or whose answer `forget` has not
        dropped yet.
        """
        with self._lock:
            return self._asking | self._opinions.keys()

    def opinions(self) -> dict[str, SecondOpinion]:
        """Return the answers that `forget` has not dropped yet, by incident."""
        with self._lock:
            return dict(self._opinions)

    def forget(self, incidents: Iterable[str]) -> None:
        """Forget answers, because they are committed."""
        with self._lock:
            for incident in incidents:
                self._opinions.pop(incident, None)

    def _run(self) -> None:
        while True:
            asked_at, alert = self._questions.get()
            if self._clock() - asked_at > WAIT_S:
                reason = f"the endpoint was busy with other incidents for {WAIT_S:g} s"
                opinion = SecondOpinion(answer=SecondOpinion.ANSWER_NONE, reason=reason)
            else:
                opinion = self._opinion(alert)
            with self._lock:
                self._asking.discard(alert.incident)
                self._opinions[alert.incident] = opinion


def _request(model: str, alert: Alert, pictures: Sequence[bytes]) -> dict[str, Any]:
    """Return a request's body: a description of the pictures, the pictures, and the question."""
    structure = structure_of(alert.question)
    prompt = f"{alert.question}\nAnswer with one word: yes or no." if structure is None else structure.prompt
    content: list[dict[str, Any]] = [
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"},
        }
        for picture in pictures
    ]
    if len(pictures) > 1:
        seconds = (alert.end.ToMilliseconds() - alert.start.ToMilliseconds()) / 1000
        text = f"{len(pictures)} pictures of one camera, in order, from {seconds:.0f} seconds:"
        content.insert(0, {"type": "text", "text": text})
    return {
        "model": model,
        "temperature": 0,
        "max_tokens": _TOKENS if structure is None else MAX_ANSWER,
        "messages": [
            {"role": "user", "content": [*content, {"type": "text", "text": prompt}]},
        ],
    }


def _fault(reply: bytes) -> str:
    """Return a colon and the endpoint's reason for rejecting a question; empty if the reply gives none."""
    try:
        message = json.loads(reply)["error"]["message"]
    except (KeyError, TypeError, ValueError):
        return ""
    return f": {clean(str(message), 200)}"


def _read(reply: Any, opinion: SecondOpinion, structure: StructuredQuestion | None) -> None:
    """Write an endpoint's reply, which is untrusted input, into the opinion.

    For a structured question, the answer is yes if it satisfies the question's condition.
    """
    try:
        text = reply["choices"][0]["message"]["content"]
        tokens = reply.get("usage", {}).get("total_tokens", 0)
    except (AttributeError, IndexError, KeyError, TypeError):
        opinion.reason = "the endpoint's reply has no choices[0].message.content"
        return
    opinion.text = clean(str(text), 1000)
    if type(tokens) is int and 0 <= tokens < 2**32:
        opinion.tokens = tokens
    if structure is None:
        word = _WORD.match(opinion.text)
        is_yes = None if word is None else word[1].lower() == "yes"
    else:
        is_yes = structure.said_yes(opinion.text)
    if is_yes is None:
        wanted = "neither yes nor no" if structure is None else "none of the allowed answers"
        opinion.reason = f"the model answers {wanted}: {opinion.text[:100]!r}"
    else:
        opinion.answer = SecondOpinion.ANSWER_YES if is_yes else SecondOpinion.ANSWER_NO
