"""What the records of erasures.v1 say, and which times are fenced."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from lookout.past.erasures import Eraser, Fence, LiveFence, erasure_fault, new_erasure, read_log
from lookout.past.erasures.signing import ConfirmationSigner
from lookout.runtime.net import GrpcSecurity
from lookout.v1.erasures_pb2 import ErasedPart, Erasure, ErasureConfirmation, ErasureMember
from lookout.wire import to_json

HOUR = 3_600_000_000
NOW = 1_700_000_000_000_000


def test_the_future_is_not_erased() -> None:
    request = new_erasure("gate", NOW - HOUR, NOW + HOUR, NOW, "me")
    assert (request.begin_us, request.end_us, request.whole) == (NOW - HOUR, NOW, False)
    assert new_erasure("gate", None, None, NOW, "me").whole
    ahead = new_erasure("gate", NOW + 1, NOW + HOUR, NOW, "me")  # of a clock that was ahead
    assert (ahead.begin_us, ahead.end_us) == (NOW + 1, NOW + HOUR)


def test_a_span_that_touches_an_erased_one_is_hidden() -> None:
    fence = Fence([Erasure(id="e-1", camera="gate", begin_us=100, end_us=200)])
    hidden = [(150, 160), (0, 101), (199, 500), (0, 900), (100, 100)]
    assert all(fence.hides("gate", *span) is not None for span in hidden)
    assert all(fence.hides("gate", *span) is None for span in [(0, 100), (200, 900), (200, 200), (99, 99)])
    assert fence.hides("yard", 150, 160) is None


def test_a_camera_ends_that_was_silent_since_its_whole_past_was_erased() -> None:
    fence = Fence([new_erasure("gate", None, None, NOW, "me"), new_erasure("yard", 1, 2, NOW, "me")])
    assert fence.ends("gate", NOW / 1000 - 1)
    assert not fence.ends("gate", NOW / 1000 + 1)  # it sends again
    assert not fence.ends("yard", 0.0)  # a range of it was erased


def test_a_live_fence_follows_its_table() -> None:
    erasures: list[Erasure] = []
    version: list[object] = [object()]
    fence = LiveFence(lambda: version[0], lambda: list(erasures))
    assert fence.hides("gate", 5, 6) is None
    erasures.append(Erasure(id="e-1", camera="gate", begin_us=0, end_us=10))
    version[0] = object()
    assert fence.hides("gate", 5, 6) is not None


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("e-1", b"{}", "under the key"),
        ("e-1", b"{nope", "JSON"),
        ("e-1", to_json(Erasure(id="e-1", camera="gate", begin_us=9, end_us=9)), "empty"),
        ("e-1", to_json(Erasure(id="e-1", camera="a b\n", begin_us=0, end_us=9)), "no camera's id"),
        ("e-1@p", to_json(ErasureConfirmation(erasure="e-1", instance="q")), "under the key"),
        ("@p", to_json(ErasureMember(instance="q")), "under the key"),
        ("e-1", to_json(Erasure(id="e-1", camera="gate", begin_us=0, end_us=9)), None),
    ],
)
def test_a_record_that_cannot_be_used_says_why(key: str, value: bytes, fault: str | None) -> None:
    actual = erasure_fault(key, value)
    assert (actual is None) if fault is None else (fault in str(actual))


def test_the_first_record_of_an_erasure_stands_and_members_leave() -> None:
    wide = Erasure(id="e-1", camera="gate", begin_us=0, end_us=900)
    narrow = Erasure(id="e-1", camera="gate", begin_us=0, end_us=1)
    rows: list[tuple[str, bytes | None]] = [
        ("@p", to_json(ErasureMember(instance="p", service="prefill"))),
        ("@q", to_json(ErasureMember(instance="q", service="prefill"))),
        ("e-1", to_json(wide)),
        ("e-1", to_json(narrow)),
        ("e-1", None),
        ("e-1@p", to_json(ErasureConfirmation(erasure="e-1", instance="p"))),
        ("other", b"\xff"),
    ]
    log = read_log(rows)
    assert log.erasures["e-1"].end_us == 900
    assert [member.instance for member in log.open_at("e-1")] == ["q"]
    assert read_log([*rows, ("@q", None)]).open_at("e-1") == []


def test_a_confirmation_that_the_fleet_did_not_sign_ends_no_erasure() -> None:
    ours, theirs = (
        ConfirmationSigner.of(GrpcSecurity(grpc_token=SecretStr(token * 32))) for token in ("a", "b")
    )
    done = ErasureConfirmation(erasure="e-1", instance="p", parts=[ErasedPart(what="chapters", count=3)])
    head: list[tuple[str, bytes | None]] = [
        ("@p", to_json(ErasureMember(instance="p", service="prefill"))),
        ("e-1", to_json(Erasure(id="e-1", camera="gate", begin_us=0, end_us=900))),
    ]

    def waiting(confirmation: ErasureConfirmation, signer: ConfirmationSigner) -> list[str]:
        log = read_log([*head, ("e-1@p", to_json(confirmation))], signer)
        return [member.instance for member in log.open_at("e-1")]

    assert waiting(done, ours) == ["p"]  # nobody signed it
    theirs.sign(done)
    assert waiting(done, ours) == ["p"]
    ours.sign(done)
    assert waiting(done, ours) == []
    done.parts[0].count = 4
    assert waiting(done, ours) == ["p"]
    assert waiting(done, ConfirmationSigner(None)) == []  # a fleet without a token checks nothing


def test_a_member_whose_confirmation_was_forged_erases_all_the_same() -> None:
    signer = ConfirmationSigner.of(GrpcSecurity(grpc_token=SecretStr("a" * 32)))
    rows: list[tuple[str, bytes | None]] = [
        ("e-1", to_json(Erasure(id="e-1", camera="gate", begin_us=0, end_us=900))),
        ("e-1@p", to_json(ErasureConfirmation(erasure="e-1", instance="p"))),
    ]
    erased: list[str] = []

    def step(request: Erasure) -> int:
        erased.append(request.id)
        return 1

    eraser = Eraser(
        lambda: read_log(rows, signer),
        lambda key, value: rows.append((key, value)),
        "p",
        "prefill",
        {"chapters": step},
        signer=signer,
    )
    eraser.join()
    assert erased == ["e-1"]
    assert read_log(rows, signer).open_at("e-1") == []
