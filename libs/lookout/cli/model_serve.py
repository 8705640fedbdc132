"""`lookout model serve`: a checkpoint that answers questions about pictures over HTTP."""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from lookout.cli.model import AnywayOption, DeviceOption, find_device, find_model
from lookout.cli.options import CliError
from lookout.cli.output import TerminalConsole, say
from lookout.cli.signals import ending_quietly
from lookout.errors import LookoutError
from lookout.structured import structure_of, structured
from lookout.text import clean
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.segments.stills import film

#: maximum bytes of a request: pictures in base64 and a question
_BODY: Final = 16 << 20
#: maximum number of pictures in a request
_PICTURES: Final = 16
#: time limit in seconds for receiving a request
_RECEIVE_S: Final = 30.0
_YES_NO: Final = re.compile(r"(.+?)\s+Answer with one word: yes or no\.?", re.DOTALL)
_ONE_OF: Final = re.compile(r"(.+?)\s+Answer with one of: (.+?)\.?", re.DOTALL)


class AskedError(LookoutError):
    """A request that cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed request. `question`: in the form of a watch's question; `pictures`: JPEG, oldest first."""

    question: str
    pictures: tuple[bytes, ...]


def read_request(body: bytes) -> Asked:
    """Parse the question and the pictures of a request (OpenAI's `/v1/chat/completions`).

    The question is the last text; an earlier text explains the pictures.

    Raises:
        AskedError: The request has no valid pictures, or asks for more than yes, no or one of a list.
    """
    try:
        parts = json.loads(body)["messages"][-1]["content"]
        text = [part["text"] for part in parts if part["type"] == "text"][-1].strip()
        addresses = [
            part["image_url"]["url"].partition(";base64,") for part in parts if part["type"] == "image_url"
        ]
        pictures = tuple(base64.b64decode(data, validate=True) for _, _, data in addresses)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):  # binascii's is a ValueError
        raise AskedError(
            "messages: give a text, and pictures as image_url with data:image/jpeg;base64,..."
        ) from None
    if not 0 < len(pictures) <= _PICTURES:
        raise AskedError(f"messages: give 1 to {_PICTURES} pictures (image_url), not {len(pictures)}")
    if any(kind != "data:image/jpeg" for kind, _, _ in addresses):
        raise AskedError("image_url: give data:image/jpeg;base64,...; URLs are not fetched")
    if match := _ONE_OF.fullmatch(text):
        first = match[2].split(",")[0].strip()
        return Asked(structured(match[1], match[2], f"answer = {first}"), pictures)
    match = _YES_NO.fullmatch(text)
    return Asked(match[1] if match else text, pictures)


class Judge:
    """Answers questions about pictures with a checkpoint, one at a time.

    Args:
        folder: The checkpoint.
        device: Where it runs: "cpu", "cuda", "cuda:1".
        anyway: Also answer questions that the checkpoint was not trained for.
    """

    def __init__(self, folder: Path, device: str, *, anyway: bool = False) -> None:
        from lookout import models
        from lookout.streams.session.host import EngineHost, HostSettings

        self.name = folder.name
        self._anyway, self._lock, self._numbers = anyway, threading.Lock(), count()
        self._sampling = models.window_defaults(folder).changed(fps=None, stride_s=None, window_s=None)
        self._host = EngineHost(HostSettings(folder, "transformers", device))
        self._pool = SandboxPool(1, SandboxSettings(strict=sys.platform == "linux"))

    def answer(self, asked: Asked) -> tuple[str, int]:
        """Return the answer in words, and the number of tokens of the pictures.

        Raises:
            LookoutError: A picture cannot be decoded, or the question cannot be asked.
        """
        from lookout.streams import decode_request
        from lookout.streams.session import Session

        grid, sampling, count = self._host.tower.grid, self._sampling, len(asked.pictures)
        request = decode_request(grid.width, grid.height, frames=tuple(range(count)))
        if not all(asked.pictures):
            raise AskedError("image_url: a picture is empty")
        pixels = self._pool.decode(film(asked.pictures), request).pixels
        if len(pixels) != count:
            raise AskedError(f"image_url: {len(pixels)} of {count} pictures can be decoded")
        # The model was trained on windows, so the pictures are spread over a window. A single picture fills a
        # stride without motion.
        samples = sampling.block_samples * (sampling.window_blocks if count > 1 else 1)
        frames = pixels[np.arange(samples) * count // samples]
        times = [index / sampling.fps for index in range(len(frames))]
        with (
            self._lock,
            Session(engine=self._host, name=f"picture-{next(self._numbers)}", anyway=self._anyway) as session,
        ):
            *_, window = [*session.push(frames, times), *session.flush()]
            answer = session.ask(asked.question, text=False)
        if structure_of(asked.question) is not None:
            best = max(answer.answers, key=answer.answers.__getitem__)
            return f"{best} (p = {answer.answers[best]:.3f})", window.tokens_kept
        assert answer.p_yes is not None
        return f"{'Yes' if answer.p_yes >= 0.5 else 'No'} (p(yes) = {answer.p_yes:.3f})", window.tokens_kept

    def close(self) -> None:
        """Free the checkpoint and end the decoder."""
        self._host.close()
        self._pool.close()


def server(judge: Judge, host: str, port: int, key: str) -> ThreadingHTTPServer:
    """Return a server with an OpenAI-compatible endpoint, `/v1/chat/completions`.

    Args:
        judge: Answers the questions.
        host: The address to listen on.
        port: The port; 0: a free one.
        key: The bearer token that requests must carry; empty: no token is required.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _RECEIVE_S

        def do_POST(self) -> None:
            given = self.headers.get("authorization", "")
            if key and not compare_digest(given.encode(), f"Bearer {key}".encode()):
                return self._reply(401, _fault("the key is missing or wrong"))
            size = self.headers.get("content-length", "")
            if self.path != "/v1/chat/completions" or not size.isdecimal() or int(size) > _BODY:
                return self._reply(404, _fault(f"POST /v1/chat/completions, {_BODY >> 20} MiB at most"))
            try:
                text, tokens = judge.answer(read_request(self.rfile.read(int(size))))
            except LookoutError as error:
                return self._reply(400, _fault(clean(str(error), 300)))
            return self._reply(200, _completion(judge.name, text, tokens))

        def _reply(self, status: int, body: Mapping[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because questions are confidential."""

    listening = ThreadingHTTPServer((host, port), Handler)
    listening.daemon_threads = True
    return listening


def _fault(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def _completion(model: str, text: str, tokens: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    }


def serve(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the checkpoint.  [default: the small one included]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8000,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key that requests must carry.  [default: none]")
    ] = None,
    device: DeviceOption = None,
    anyway: AnywayOption = False,
) -> None:
    """Answer questions about pictures with a second checkpoint, for second opinions.

    It serves an OpenAI-compatible endpoint, which answers yes or no, or one of a list, with its probability.
    Ctrl-C ends it.

    Example:

        lookout model serve /models/Qwen2.5-VL-7B-Instruct --device cuda:1
    """
    try:
        key = "" if key_file is None else key_file.read_text().strip()
    except OSError as error:
        raise CliError(f"--key-file {key_file}: {error.strerror}") from None
    if key_file is not None and not key:
        raise CliError(f"--key-file {key_file} is empty")
    checkpoint, out = find_model(folder), TerminalConsole(stderr=True)
    judge = Judge(checkpoint, find_device(device), anyway=anyway)
    try:
        listening = server(judge, host, port, key)
    except OSError as error:
        judge.close()
        raise CliError(f"{host}:{port}: {error.strerror}; choose another port with --port") from None
    with ending_quietly(), listening:
        say(out, "{} answers at http://{}:{}/v1", checkpoint.name, host, listening.server_address[1])
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            judge.close()
