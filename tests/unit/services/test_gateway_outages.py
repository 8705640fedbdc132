"""What agents said of cameras stands in reports about outages that are over."""

from __future__ import annotations

from pathlib import Path

from lookout.services.gateway.history import outages
from lookout.services.gateway.history.asked import UNSEEN
from lookout.services.gateway.history.database import Database
from lookout.v1.gateway_pb2 import UnwatchedTime

HOUR_MS = 3_600_000
BEGIN_MS = 1_000 * HOUR_MS
REFUSED, SLOW = "cannot reach 10.0.0.8: refused", "cannot reach 10.0.0.8: timed out"


def stretch(camera: str, begin_ms: int, end_ms: int, reason: str = UNSEEN) -> UnwatchedTime:
    """A time in which a watch had no answer."""
    message = UnwatchedTime(camera=camera, reason=reason)
    message.start.FromMilliseconds(BEGIN_MS + begin_ms)
    message.end.FromMilliseconds(BEGIN_MS + end_ms)
    return message


def test_an_outage_that_is_over_has_what_was_said_longest(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/history.db")
    database.migrate()
    for at_ms, said in (
        (0, {"gate": REFUSED}),
        (10_000, {"gate": REFUSED, "yard": SLOW}),
        (20_000, {"gate": SLOW}),
        (30_000, {}),
        (40_000, {"gate": SLOW}),  # it comes and goes
        (3 * HOUR_MS, {"gate": REFUSED}),
    ):
        outages.note(database, said, BEGIN_MS + at_ms)
    wanted = [
        (stretch("gate", -60_000, 15_000), REFUSED),
        (stretch("gate", -60_000, 60_000), SLOW),
        (stretch("gate", 2 * HOUR_MS, 4 * HOUR_MS), REFUSED),
        (stretch("gate", HOUR_MS, 2 * HOUR_MS), ""),  # nobody said anything then
        (stretch("gate", -60_000, 15_000, "gap"), ""),
        (stretch("yard", 0, 60_000), SLOW),
        (stretch("dock", 0, 60_000), ""),
    ]
    with database.reading() as connection:
        outages.explain(connection, [one for one, _ in wanted])
    assert [one.said for one, _ in wanted] == [said for _, said in wanted]
    database.close()
