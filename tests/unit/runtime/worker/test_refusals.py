"""A dead letter holds as much of its record as fits, and every refusal leaves less."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from lookout.runtime.worker.records import DeadLetter, Record
from lookout.runtime.worker.refusals import LetterContent, Refusals, dead_letter, size_of
from lookout.wire import headers

BAD = DeadLetter("bad", "as asked")


def record(value: int = 10, header: int = 10, key: int = 3) -> Record:
    return Record("in", 2, 7, "k" * key, bytes(value), (("long", bytes(header)),))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 6000))
def test_a_dead_letter_fits_and_loses_no_more_than_it_must(
    value: int, header: int, key: int, limit: int
) -> None:
    given_record = record(value, header, key)
    output, kept = dead_letter(given_record, BAD, stage="toy", topic="dlq", limit=limit)
    if output is not None:
        assert size_of(output) <= limit
        assert headers.text(output.headers, headers.REASON) == "bad"
        assert (headers.text(output.headers, headers.DROPPED) or "") == kept.dropped
    if kept is not LetterContent.ALL:
        larger, _ = dead_letter(
            given_record, BAD, LetterContent(kept - 1), stage="toy", topic="dlq", limit=1 << 30
        )
        assert larger is not None
        assert size_of(larger) > limit


def test_every_refusal_of_a_dead_letter_leaves_one_part_less() -> None:
    refusals, one = Refusals(), record()
    for expected in (
        LetterContent.WITHOUT_HEADERS,
        LetterContent.WITHOUT_VALUE,
        LetterContent.WITHOUT_KEY,
        LetterContent.NOTHING,
        LetterContent.NOTHING,
    ):
        known = refusals.of(one)
        refusals.dead_letter_refused(one, known.kept if known else LetterContent.ALL)
        after = refusals.of(one)
        assert after is not None
        assert after.kept is expected
    refusals.committed(one)
    assert refusals.of(one) is None


def test_an_output_that_is_refused_twice_leaves_the_dead_letter_alone() -> None:
    refusals, one = Refusals(), record()
    refusals.output_refused(one, "out", "too large")
    first = refusals.of(one)
    assert first is not None
    assert first.reason is not None
    assert (first.reason.reason, first.bare) == ("output-refused", False)
    refusals.output_refused(one, "out", "too large")
    second = refusals.of(one)
    assert second is not None
    assert second.bare


def test_what_is_refused_is_forgotten_with_its_partition() -> None:
    refusals, one = Refusals(), record()
    refusals.output_refused(one, "out", "too large")
    refusals.tick_refused(2, "cam")
    assert not refusals.may_tick(2, "cam")
    refusals.forget(3)
    assert refusals.of(one) is not None
    refusals.forget(2)
    assert refusals.of(one) is None
    assert refusals.may_tick(2, "cam")


def test_a_reason_with_anything_in_it_can_be_written() -> None:
    """Half a surrogate pair in a reason once ended the stage at each try to write the dead letter."""
    why = DeadLetter("bad", "no field \ud800\udfff \x1b[2J " + "x" * 100_000)
    output, _ = dead_letter(record(), why, stage="toy", topic="dlq", limit=1 << 20)
    assert output is not None
    detail = headers.text(output.headers, headers.DETAIL) or ""
    assert detail.startswith("no field \\ud800\\udfff \\x1b[2J xxx")
    assert len(detail) < 5000
    assert headers.encode({"a": "\ud800"}) == (("a", b"\\ud800"),)
