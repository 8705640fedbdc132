"""`lookout model serve`: the endpoint with the bundled model, asked as notify asks it."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lookout.cli.model_serve import AskedError, Judge, read_request, server
from lookout.models import find_model
from lookout.runtime.worker import load_settings
from lookout.services.gateway.media.store import jpeg
from lookout.services.notify.opinions import Endpoints
from lookout.services.notify.settings import NotifySettings
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.video.segments import DecodeRequest, SoftwareDecoder
from tests.fleet.notify_case import alert

QUESTION = "Is anyone lying on the ground?"
KEY = "a key of the tests"


def body(text: str, *pictures: str) -> bytes:
    content: list[dict[str, object]] = [
        {"type": "image_url", "image_url": {"url": picture}} for picture in pictures
    ]
    content.append({"type": "text", "text": text})
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    judge = Judge(find_model(None), "cpu", anyway=True)
    listening = server(judge, "127.0.0.1", 0, KEY)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield listening.server_address[1]
    listening.shutdown()
    listening.server_close()
    judge.close()


def pictures() -> dict[int, bytes]:
    """Pictures of a rendered film in which somebody falls, by second."""
    film = next(Path("libs/watchbench/films").glob("room-*.mp4")).read_bytes()
    decoded = SoftwareDecoder().decode(film, DecodeRequest(448, 336))
    return {frame.slot // 2: jpeg(decoded.pixels[row]) for row, frame in enumerate(decoded.frames)}


def grey() -> list[str]:
    """A grey picture, as a request has it."""
    data = jpeg(np.full((16, 64, 3), 128, np.uint8))
    return [f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"]


def endpoint(port: int, folder: Path, pictures: Sequence[bytes]) -> Endpoints:
    (folder / "key").write_text(KEY)
    settings = load_settings(
        NotifySettings,
        {
            "LOOKOUT_MODE": "local",
            "LOOKOUT_BOOTSTRAP": "127.0.0.1:1",
            "LOOKOUT_NOTIFY_HOSTS": "127.0.0.1",
            "LOOKOUT_NOTIFY_NETWORKS": "127.0.0.0/8",
            "LOOKOUT_NOTIFY_SECRETS": str(folder),
            "LOOKOUT_OPINION_KEY": "key",
            "LOOKOUT_OPINION_MODEL": "tiny",
            "LOOKOUT_OPINION_URL": f"http://127.0.0.1:{port}/v1",
        },
    )
    return Endpoints(settings, lambda alert, count: pictures[:count])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 8])
def test_the_bundled_model_confirms_a_fall_and_denies_none(port: int, tmp_path: Path, count: int) -> None:
    film = pictures()
    opinions = {}
    for second in (2, 24):
        event = alert(1, Alert.KIND_OPENED)
        event.question = QUESTION
        shown = [film[second + number] for number in range(count)]
        opinions[second] = endpoint(port, tmp_path, shown).opinion(event)
    assert opinions[2].answer == SecondOpinion.ANSWER_NO, opinions
    assert opinions[24].answer == SecondOpinion.ANSWER_YES, opinions
    assert opinions[24].tokens > 0
    assert "p(yes) = " in opinions[24].text


@pytest.mark.slow
def test_allowed_answers_are_answered_with_one_of_them(port: int, tmp_path: Path) -> None:
    event = alert(1, Alert.KIND_OPENED)
    event.question = "How many people are in view? [0..2] when count in {0, 1}"
    opinion = endpoint(port, tmp_path, [pictures()[2]]).opinion(event)
    assert opinion.text.split(" (p = ")[0] in ("0", "1", "2")
    assert opinion.answer != SecondOpinion.ANSWER_NONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_body", "key", "status", "says"),
    [
        (body(QUESTION, "data:image/jpeg;base64,AAAA"), "wrong", 401, "the key"),
        (body(QUESTION, "data:image/jpeg;base64,AAAA"), KEY, 400, ""),
        (body(QUESTION, "http://127.0.0.1/picture"), KEY, 400, "image_url"),
        (body("", "data:image/jpeg;base64,AAAA"), KEY, 400, ""),
        (body(QUESTION), KEY, 400, "1 to 16 pictures (image_url), not 0"),
        (body(QUESTION, *["data:image/jpeg;base64,AAAA"] * 17), KEY, 400, "not 17"),
        (body(QUESTION, *grey(), "data:image/jpeg;base64,AAAA"), KEY, 400, "1 of 2 pictures"),
        (b"{", KEY, 400, "messages"),
        (b"[]", KEY, 400, "messages"),
    ],
)
def test_what_cannot_be_answered_has_its_reason(
    port: int, request_body: bytes, key: str, status: int, says: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", request_body, {"authorization": f"Bearer {key}"})
    reply = connection.getresponse()
    message = json.loads(reply.read())["error"]["message"]
    connection.close()
    assert reply.status == status
    assert message
    assert says in message


def test_a_request_is_read_as_watches_write_their_questions() -> None:
    picture = "data:image/jpeg;base64," + base64.b64encode(b"picture").decode()
    asked = read_request(body(f"{QUESTION}\nAnswer with one word: yes or no.", picture))
    assert (asked.question, asked.pictures) == (QUESTION, (b"picture",))
    said = json.loads(body("Is it?", picture, picture))
    said["messages"][0]["content"].insert(0, {"type": "text", "text": "2 pictures of one camera:"})
    asked = read_request(json.dumps(said).encode())
    assert (asked.question, asked.pictures) == ("Is it?", (b"picture",) * 2)
    asked = read_request(body("How many? Answer with one of: 0, 1, 2 or more.", picture))
    assert asked.question == "How many? [0, 1, 2 or more] when answer = 0"
    with pytest.raises(AskedError, match="image_url"):
        read_request(json.dumps({"messages": [{"content": "a text"}]}).encode())
