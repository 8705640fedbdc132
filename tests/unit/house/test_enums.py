"""Every value of every enumeration of the wire is written by the room that owns it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.v1 import alerts_pb2, frames_pb2, lineage_pb2, verdicts_pb2

ROOT = Path(__file__).parents[3]
WRITERS = {
    "services/decode": (frames_pb2.Frame.Basis,),
    "libs/lookout/streams/stages": (lineage_pb2.StreamEvent.Kind,),
    "libs/lookout/streams/chains": (verdicts_pb2.Verdict.Outcome,),
    "services": (lineage_pb2.Stage, alerts_pb2.Alert.Kind),
}


@pytest.mark.parametrize("room", WRITERS)
def test_every_value_has_a_writer(room: str) -> None:
    code = "".join(path.read_text() for path in (ROOT / room).rglob("*.py"))
    values = [name for enum in WRITERS[room] for name in enum.keys()]  # noqa: SIM118
    assert [name for name in values if not name.endswith("_UNSPECIFIED") and name not in code] == []
