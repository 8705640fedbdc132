"""What the records of erasures.v1 say, and which times are fenced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from lookout.past.erasures import Eraser, Fence, LiveFence, erasure_fault, new_erasure, read_log
from lookout.past.erasures.service import LiveErasures
from lookout.past.erasures.signing import ErasureMessage, ErasureSigner
from lookout.runtime.net import GrpcSecurity
from lookout.runtime.worker.tables import PastRow, View
from lookout.v1.erasures_pb2 import ErasedPart, Erasure, ErasureConfirmation, ErasureMember
from lookout.wire import limits, to_json

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
        ("e-1", to_json(Erasure(id="e-1", camera="a b\n", begin_us=0, end_us=9)), "is not a camera id"),
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
        ("e-1@p", to_json(ErasureConfirmation(erasure="e-1", instance="p", camera="gate", end_us=900))),
        ("other", b"\xff"),
    ]
    log = read_log(rows)
    assert log.erasures["e-1"].end_us == 900
    assert [member.instance for member in log.open_at("e-1")] == ["q"]
    assert read_log([*rows, ("@q", None)]).open_at("e-1") == []


def signer_of(letter: str) -> ErasureSigner:
    return ErasureSigner.of(GrpcSecurity(grpc_token=SecretStr(letter * 32)))


OURS, THEIRS = signer_of("a"), signer_of("b")
Rows = list[tuple[str, bytes | None]]


def record(message: ErasureMessage, signer: ErasureSigner | None = OURS) -> bytes:
    if signer is not None:
        signer.sign(message)
    return to_json(message)


def request(**fields: Any) -> Erasure:
    return Erasure(**{"id": "e-1", "camera": "gate", "begin_us": 0, "end_us": 900, **fields})


def done(**fields: Any) -> ErasureConfirmation:
    facts = {"erasure": "e-1", "instance": "p", "camera": "gate", "begin_us": 0, "end_us": 900}
    return ErasureConfirmation(**{**facts, **fields}, parts=[ErasedPart(what="chapters", count=3)])


def member(announced_us: int = 1, **fields: Any) -> ErasureMember:
    return ErasureMember(**{"instance": "p", "service": "prefill", "announced_us": announced_us, **fields})


def waiting(rows: Rows, signer: ErasureSigner = OURS) -> list[str]:
    return [each.instance for each in read_log(rows, signer).open_at("e-1")]


def test_what_the_fleet_did_not_sign_asks_for_nothing_confirms_nothing_and_nobody_leaves() -> None:
    head: Rows = [("@p", record(member())), ("e-1", record(request()))]
    forged: dict[str, Rows] = {
        "unsigned": [("e-1@p", record(done(), None))],
        "signed by another fleet": [("e-1@p", record(done(), THEIRS))],
        "of another range": [("e-1@p", record(done(end_us=1)))],
        "of another camera": [("e-1@p", record(done(camera="yard")))],
        "the member deleted": [("@p", None)],
        "the member left, unsigned": [("@p", record(member(9, left=True), None))],
        "an old departure again": [("@p", record(member(0, left=True)))],
    }
    for what, rows in forged.items():
        assert waiting([*head, *rows]) == ["p"], what
    changed = done()
    OURS.sign(changed)
    changed.parts[0].count = 4
    assert waiting([*head, ("e-1@p", to_json(changed))]) == ["p"]
    assert waiting([*head, ("e-1@p", record(done()))]) == []
    assert waiting([*head, ("@p", record(member(9, left=True)))]) == []
    assert waiting([*head, ("e-1@p", record(done(), None))], ErasureSigner(None)) == []
    assert read_log([("e-1", record(request(), None))], OURS).erasures == {}


def test_a_range_far_in_the_future_is_refused() -> None:
    day = 86_400 * 10**6
    ahead = request(begin_us=NOW + 100 * day, end_us=NOW + 101 * day, requested_us=NOW)
    assert erasure_fault("e-1", record(ahead), OURS) is None
    ahead.end_us = NOW + 900 * day
    assert "in the future" in str(erasure_fault("e-1", record(ahead), OURS))
    assert "not signed with the fleet" in str(erasure_fault("e-1", record(request(), None), OURS))


def test_a_flood_of_requests_is_bounded() -> None:
    rows: Rows = [(f"e-{n}", record(request(id=f"e-{n}"), None)) for n in range(limits.ERASURES + 5)]
    assert len(read_log(rows).erasures) == limits.ERASURES


class FakeTable:
    """Stands for the table of `erasures.v1`: what its newest rows are, and every usable one so far."""

    def __init__(self, signer: ErasureSigner) -> None:
        self.signer, self.rows = signer, dict[str, bytes | None]()
        self.history, self.changed = dict[str, list[PastRow]](), set[str]()
        self.moment = View({}, 0)

    def put(self, key: str, value: bytes | None) -> None:
        self.moment = View({}, self.moment.offset + 1)
        self.changed.add(key)
        fits = value is not None and erasure_fault(key, value, self.signer) is None
        self.rows[key] = value if fits else None
        if fits and value is not None:
            self.history.setdefault(key, []).append(PastRow(self.moment.offset, value))

    def view(self) -> View:
        return self.moment

    def changes(self) -> set[str]:
        changed, self.changed = self.changed, set()
        return changed

    def past(self, key: str) -> list[PastRow]:
        return self.history.get(key, [])

    def standing(self, key: str) -> bytes | None:
        return self.rows.get(key)


def test_a_fence_stays_and_is_written_again_whatever_the_topic_says(tmp_path: Path) -> None:
    table = FakeTable(OURS)
    live = LiveErasures(table, OURS, tmp_path)  # type: ignore[arg-type]
    fence = LiveFence(live.version, live.erasures)
    rows = {"e-1": record(request()), "@p": record(member())}
    for key, value in rows.items():
        table.put(key, value)
    assert live.lost() == {}
    attacks: list[tuple[str, bytes | None]] = [
        ("e-1", None),
        ("@p", None),
        *[("e-1", record(request(end_us=1), None))] * 20,
        *[("e-1", record(request(end_us=1), THEIRS))] * 20,
        ("e-1", b"\xff"),
    ]
    for key, value in attacks:
        table.put(key, value)
        assert fence.hides("gate", 500, 501) is not None
        lost = live.lost()
        assert lost == {key: rows[key]}
        table.put(key, lost[key])
        assert live.lost() == {}
    assert [each.instance for each in live.read().open_at("e-1")] == ["p"]
    # Another process of the same disk, of a topic that has lost everything.
    empty = FakeTable(OURS)
    again = LiveErasures(empty, OURS, tmp_path)  # type: ignore[arg-type]
    assert LiveFence(again.version, again.erasures).hides("gate", 500, 501) is not None
    assert again.lost() == {"e-1": rows["e-1"]}


def test_after_a_change_of_the_token_everything_is_signed_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 32)
    signer = ErasureSigner.of(GrpcSecurity(grpc_token_file=token))
    table = FakeTable(signer)
    live = LiveErasures(table, signer)  # type: ignore[arg-type]
    table.put("e-1", record(request(), signer))
    assert live.lost() == {}
    token.write_text("c" * 32)
    lost = live.lost()
    assert erasure_fault("e-1", lost["e-1"], signer_of("c")) is None


def test_a_member_whose_confirmation_was_forged_erases_all_the_same() -> None:
    rows: Rows = [("e-1", record(request())), ("e-1@p", record(done(), None))]
    erased: list[str] = []

    def step(asked: Erasure) -> int:
        erased.append(asked.id)
        return 1

    eraser = Eraser(
        lambda: read_log(rows, OURS),
        lambda key, value: rows.append((key, value)),
        "p",
        "prefill",
        {"chapters": step},
        stays=False,
        signer=OURS,
    )
    eraser.join()
    assert erased == ["e-1"]
    assert waiting(rows) == []
    assert "p" in read_log(rows, OURS).members
    eraser.stop()
    assert "p" not in read_log(rows, OURS).members
