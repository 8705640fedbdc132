"""What `lookout publish` and `lookout watch` say where Kafka takes nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from lookout.cli.connect import send_and_confirm
from lookout.cli.options import CliError
from lookout.cli.publish import Published, Publisher, Rate, publish_one
from lookout.wire.headers import LAST, Headers


def test_a_kafka_that_does_not_answer_is_told_in_words() -> None:
    """There was the client's own `KafkaError{code=_MSG_TIMED_OUT,val=-192,...}`."""
    address = "127.0.0.1:1"
    publisher = Publisher(address, timeout_s=1.0)
    publisher.send("gate", b"a piece")
    with pytest.raises(CliError) as failure:
        publisher.confirm()
    text = str(failure.value)
    assert text.startswith(f"Kafka at {address} did not take a segment (Local: Message timed out; ")
    assert text.endswith("Connection refused): 0 of 1 are confirmed")
    with pytest.raises(CliError) as failure:
        send_and_confirm(address, "watches.v1", {"fall": b"{}"}, timeout_s=1.0)
    assert str(failure.value).startswith(
        f"Kafka at {address} did not accept the record: Local: Message timed out; "
    )
    assert str(failure.value).endswith("Connection refused")


class Sent:
    """Stands for Kafka: keeps the headers of what is sent."""

    def __init__(self) -> None:
        self.last: list[bool] = []

    def send(self, camera: str, data: bytes, headers: Headers = ()) -> None:
        del camera, data
        self.last.append(any(name == LAST for name, _ in headers))


def pieces(count: int, *, breaks_off: bool = False) -> Iterator[Any]:
    for number in range(count):
        yield SimpleNamespace(data=b"x", start_us=number * 10**6, duration_us=10**6)
    if breaks_off:
        raise CliError("damaged")


def publish(count: int, *, ends: bool, breaks_off: bool = False) -> list[bool]:
    sent, published = Sent(), Published("gate")
    with pytest.raises(CliError) if breaks_off else nullcontext():
        source = pieces(count, breaks_off=breaks_off)
        publish_one(sent, published, source, Rate.MAX, 0, ends=ends)  # type: ignore[arg-type]
    assert published.segments == count
    return sent.last


def test_the_last_segment_of_a_recording_says_so() -> None:
    """So that its end is no outage; a pipe, and a recording that breaks off, may be a camera that failed."""
    assert publish(3, ends=True) == [False, False, True]
    assert publish(1, ends=True) == [True]
    assert publish(3, ends=False) == [False] * 3
    assert publish(3, ends=True, breaks_off=True) == [False] * 3
