"""The alerts service's state survives its checkpoint."""

from __future__ import annotations

from hypothesis import given, strategies as st

from lookout.rules import Coverage, EventKind, Incident, IncidentEvent, WatchState
from lookout.services.alerts import convert
from lookout.v1 import verdicts_pb2
from tests.clock import at

frames = st.builds(
    lambda time, row: verdicts_pb2.Evidence(time=at(time), row=row).SerializeToString(deterministic=True),
    st.integers(0, 10**12),
    st.integers(0, 40),
)
incidents = st.builds(
    Incident,
    id=st.text("abcdef0123456789", min_size=1, max_size=8),
    opened_ms=st.integers(0, 2**40),
    raised_ms=st.integers(0, 2**40),
    peak=st.floats(0, 1),
    score=st.floats(0, 1),
    windows=st.integers(0, 1000),
    reported_peak=st.floats(0, 1),
    evidence=st.lists(st.tuples(st.floats(0, 1), st.lists(frames, max_size=3).map(tuple)), max_size=3).map(
        tuple
    ),
    coverage=st.builds(Coverage, answered=st.integers(0, 2**40), gap=st.integers(0, 2**40)),
)
states = st.builds(
    WatchState,
    version=st.integers(0, 100),
    epoch=st.integers(0, 2**40),
    window=st.integers(-1, 2**40),
    recent=st.lists(st.booleans(), max_size=64).map(tuple),
    newest_ms=st.integers(0, 2**42),
    cooldown_until_ms=st.integers(0, 2**42),
    incident=st.none() | incidents,
    held_since_ms=st.integers(0, 2**42),
)


@given(states)
def test_state_survives_the_checkpoint(state: WatchState) -> None:
    packed = convert.pack("fall", state, "acme")
    assert convert.unpack(packed) == state
    assert packed.incident.tenant == ("acme" if state.incident is not None else "")


def test_the_picture_is_what_several_strong_windows_look_at() -> None:
    def shown(*windows: tuple[int, ...]) -> list[int]:
        packed = [
            tuple(verdicts_pb2.Evidence(row=row).SerializeToString(deterministic=True) for row in window)
            for window in windows
        ]
        incident = Incident("i", 0, 0.9, 0.9, 3, 0.9, evidence=tuple((0.9, frames) for frames in packed))
        event = IncidentEvent(EventKind.UPDATED, incident, 1, 1, 10, "")
        return [frame.row for frame in convert.alert("gate", "fall", "Is it?", event).evidence]

    assert shown((12, 18, 16), (14, 16, 20), (10, 18, 16))[0] == 16
    assert shown((12, 18, 16)) == [12, 18, 16]
    assert shown((5,), (7,)) == [5, 7], "of equals, the stronger window's"
    assert shown() == []
