"""What `lookout publish` and `lookout watch` say where Kafka takes nothing any more."""

from __future__ import annotations

import pytest

from lookout.cli.connect import send_and_confirm
from lookout.cli.options import CliError
from lookout.cli.publish import Publisher


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
