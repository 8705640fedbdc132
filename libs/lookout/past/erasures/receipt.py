"""Makes and checks signed receipts of erasures. A receipt states what was erased, where and when, who
requested it, and what remains until when. Signatures are Ed25519."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lookout.errors import LookoutError
from lookout.past.erasures.records import ErasureLog
from lookout.v1.erasures_pb2 import Erasure

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = 1
"""Version of the receipt's format; increase it when the meaning of a field changes."""


class ReceiptError(LookoutError):
    """A receipt that cannot be made, or that is not validly signed."""


def receipt_of(
    log: ErasureLog,
    identity: str,
    *,
    retention_ms: Mapping[str, int | None],
    checkpoints: Mapping[str, bool],
    window_us: int,
    now_us: int,
    checked: bool = False,
) -> dict[str, Any]:
    """Return the unsigned receipt of an erasure, for JSON. It describes the state at `now_us`.

    Args:
        log: Content of `erasures.v1`.
        identity: The erasure's id.
        retention_ms: Retention of each Kafka topic with records of the camera; None or negative: forever.
        checkpoints: For each state topic, whether it has a checkpoint of the camera.
        window_us: Length of a window in microseconds. Frames within this time after the range may have
            attended to erased frames.
        now_us: The current time, Unix microseconds.
        checked: Whether the log has only confirmations that the fleet signed.

    Raises:
        ReceiptError: There is no such erasure.
    """
    erasure = log.erasures.get(identity)
    if erasure is None:
        names = ", ".join(sorted(log.erasures)[-5:]) or "none"
        raise ReceiptError(f"there is no erasure {identity}; the newest erasures are: {names}")
    confirmations = log.confirmed(identity)
    remains = [_remains(topic, kept, erasure.end_us, now_us) for topic, kept in sorted(retention_ms.items())]
    return {
        "format": FORMAT,
        "erasure": identity,
        "camera": erasure.camera,
        "from": _text(erasure.begin_us) if erasure.begin_us else None,
        "until": _text(erasure.end_us),
        "whole_camera": erasure.whole,
        "requested": _text(erasure.requested_us),
        "requested_by": erasure.requested_by,
        "issued": _text(now_us),
        "complete": not log.open_at(identity),
        "confirmations_checked": checked,
        "erased": [
            {
                "instance": name,
                "service": confirmation.service,
                "confirmed": _text(confirmation.confirmed_us),
                "parts": {part.what: part.count for part in confirmation.parts},
            }
            for name, confirmation in sorted(confirmations.items())
        ],
        "not_confirmed": [
            {"instance": member.instance, "service": member.service, "member_since": _text(member.since_us)}
            for member in log.open_at(identity)
        ],
        "remains": [entry for entry in remains if entry is not None],
        "checkpoints": {topic: "stands" if there else "none" for topic, there in sorted(checkpoints.items())},
        "cannot_be_undone": _lasting(erasure, window_us),
    }


def _lasting(erasure: Erasure, window_us: int) -> list[str]:
    """Return sentences about what an erasure cannot undo."""
    return [
        f"frames from {_text(erasure.end_us)} to {_text(erasure.end_us + window_us)} may have been computed "
        "while the erased ones were in their window: their KV depends on them",
        "answers and incidents that were sent to others before the erasure",
        "that there were frames at these times",
        "blocks of deleted files on disks, snapshots of volumes, backups, and versions that an object store "
        "keeps",
    ]


def signed(receipt: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return the receipt with a `signature` of all its other fields, which are signed as canonical JSON."""
    signature = {
        "algorithm": "Ed25519",
        "public_key": base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        "value": base64.b64encode(key.sign(_canonical(receipt))).decode(),
    }
    return {**receipt, "signature": signature}


def check_receipt(receipt: Mapping[str, Any], public_key: bytes | None = None) -> str:
    """Check a receipt's signature.

    Args:
        receipt: The receipt as it was issued.
        public_key: The Ed25519 key that must have signed it, 32 raw bytes; None: the key named in the
            receipt.

    Returns:
        The key that signed the receipt, in base64.

    Raises:
        ReceiptError: The receipt is not signed, was signed with another key, or was changed since.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signature = receipt["signature"]
        own = base64.b64decode(signature["public_key"], validate=True)
        value = base64.b64decode(signature["value"], validate=True)
        signer = Ed25519PublicKey.from_public_bytes(own)
    except (KeyError, TypeError, ValueError) as error:
        raise ReceiptError("this is not a signed receipt: its signature is missing or malformed") from error
    if public_key is not None and own != public_key:
        raise ReceiptError("the receipt was signed with another key than the given one")
    content = {name: entry for name, entry in receipt.items() if name != "signature"}
    try:
        signer.verify(value, _canonical(content))
    except InvalidSignature as error:
        raise ReceiptError("the receipt was changed since it was signed") from error
    return base64.b64encode(own).decode()


def _canonical(receipt: Mapping[str, Any]) -> bytes:
    return json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _remains(topic: str, kept_ms: int | None, end_us: int, now_us: int) -> dict[str, Any] | None:
    """Return the receipt's entry about a topic that may still have records of the range; None if the topic's
    retention has passed."""
    if kept_ms is None or kept_ms < 0:
        return {"where": f"Kafka {topic}", "fenced": True, "until": None}
    until_us = end_us + kept_ms * 1000
    if until_us <= now_us:
        return None
    return {"where": f"Kafka {topic}", "fenced": True, "until": _text(until_us)}


def _text(time_us: int) -> str:
    return datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC).isoformat(timespec="milliseconds")
