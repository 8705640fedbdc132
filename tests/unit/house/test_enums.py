"""Every value of every enumeration of the wire is written by the stage that owns it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.v1 import alerts_pb2, frames_pb2, lineage_pb2, verdicts_pb2

ROOT = Path(__file__).parents[3]
WRITERS = {
    "decode": (lineage_pb2.StreamEvent.Kind, frames_pb2.Frame.Basis),
    "prefill": (verdicts_pb2.Verdict.Outcome,),
    "alerts": (alerts_pb2.Alert.Kind,),
    "": (lineage_pb2.Stage,),
}


@pytest.mark.parametrize("service", WRITERS)
def test_every_value_has_a_writer(service: str) -> None:
    code = "".join(path.read_text() for path in (ROOT / "services" / service).rglob("*.py"))
    values = [name for enum in WRITERS[service] for name in enum.keys()]  # noqa: SIM118
    assert [name for name in values if not name.endswith("_UNSPECIFIED") and name not in code] == []
