"""Receipts say what was erased and what remains, and show every change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lookout.past.erasures import ErasureLog, ReceiptError, check_receipt, receipt_of, signed
from lookout.v1.erasures_pb2 import ErasedPart, Erasure, ErasureConfirmation, ErasureMember

DAY_MS = 86_400_000
NOW = 1_700_000_000_000_000
KEY = Ed25519PrivateKey.generate()


def log() -> ErasureLog:
    erasure = Erasure(
        id="e-1", camera="gate", begin_us=NOW - 9, end_us=NOW, requested_us=NOW, requested_by="me@here"
    )
    confirmation = ErasureConfirmation(
        erasure="e-1",
        instance="prefill-0",
        service="prefill",
        confirmed_us=NOW + 5,
        parts=[ErasedPart(what="chapters", count=12)],
        camera="gate",
        begin_us=NOW - 9,
        end_us=NOW,
    )
    members = {name: ErasureMember(instance=name, service="prefill") for name in ("prefill-0", "prefill-1")}
    return ErasureLog({"e-1": erasure}, {"e-1": {"prefill-0": confirmation}}, members)


def receipt(now_us: int = NOW + 10) -> dict[str, Any]:
    return receipt_of(
        log(),
        "e-1",
        retention_ms={"frames.v1": DAY_MS, "kept.v1": None},
        checkpoints={"decode.state.v1": True},
        window_us=40_000_000,
        now_us=now_us,
    )


def test_a_receipt_says_who_erased_what_and_what_remains_until_when() -> None:
    facts = receipt()
    assert (facts["camera"], facts["requested_by"], facts["complete"]) == ("gate", "me@here", False)
    assert facts["erased"][0]["parts"] == {"chapters": 12}
    assert [entry["instance"] for entry in facts["not_confirmed"]] == ["prefill-1"]
    assert facts["remains"] == [
        {"where": "Kafka frames.v1", "fenced": True, "until": "2023-11-15T22:13:20.000+00:00"},
        {"where": "Kafka kept.v1", "fenced": True, "until": None},
    ]
    later = receipt(NOW + DAY_MS * 1000 + 1)
    assert [entry["where"] for entry in later["remains"]] == ["Kafka kept.v1"]


def test_a_signed_receipt_is_right_after_a_trip_through_json_and_wrong_after_any_change() -> None:
    issued = json.loads(json.dumps(signed(receipt(), KEY)))
    assert check_receipt(issued, KEY.public_key().public_bytes_raw())
    with pytest.raises(ReceiptError, match="another key"):
        check_receipt(issued, Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    for name in issued.keys() - {"signature"}:
        with pytest.raises(ReceiptError, match="changed"):
            check_receipt({**issued, name: "other"})
    with pytest.raises(ReceiptError, match="not a signed receipt"):
        check_receipt(receipt())


def test_an_unknown_erasure_is_named() -> None:
    with pytest.raises(ReceiptError, match="no erasure e-2; the newest erasures are: e-1"):
        receipt_of(log(), "e-2", retention_ms={}, checkpoints={}, window_us=0, now_us=NOW)
