"""Which pasts the bench of memory asks about, and how it counts the answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.memory.history import SEEN_FOR, histories, runs, table


def shown(*spans: tuple[int, int]) -> np.ndarray:
    out = np.zeros(400, bool)
    for first, last in spans:
        out[first : last + 1] = True
    return out


def test_a_short_gap_is_no_end_of_an_episode() -> None:
    assert runs(shown((10, 20), (25, 30), (200, 210))) == [(10, 30), (200, 210)]
    assert runs(shown()) == []


def test_the_history_that_is_answered_no_holds_no_evidence_and_no_block_that_saw_it() -> None:
    evidence = shown((50, 61), (200, 203))
    (bare, none), (first, age), (second, later) = histories(evidence)
    assert none == 0.0
    assert not (bare & evidence).any()
    assert not bare[62 : 61 + SEEN_FOR].any()
    assert age > later > 0
    for own, episode in ((first, slice(50, 62)), (second, slice(200, 204))):
        assert own[episode].all()
        others = evidence.copy()
        others[episode] = False
        assert not (own & others).any()


def test_a_policy_that_reads_nothing_scores_chance() -> None:
    rows = [
        {"question": "person", "age": age, "p": {"ours": 0.9 if age else 0.1, "none": 0.4}}
        for age in (0.0, 5.0, 40.0)
    ]
    found = table([{"stream": "room", "rows": rows}])
    assert found["none"]["chosen"] == 0.5
    assert found["ours"]["chosen"] == found["ours"]["right"] == 1.0
    assert found["ours"]["10 to 30 minutes"] is None


def test_intervals_draw_the_pairs_of_one_question_and_stream_together() -> None:
    """They share the history without an episode: one that is answered wrong loses all of them at once."""

    def unit(stream: str, bare: float, ages: int) -> dict[str, Any]:
        ones = [{"question": "left", "age": float(age), "p": {"ours": 0.5}} for age in range(1, ages + 1)]
        return {"stream": stream, "rows": [{"question": "left", "age": 0.0, "p": {"ours": bare}}, *ones]}

    units = [unit("room-1", 0.9, 30), unit("room-2", 0.1, 30)]
    row = table(units)["ours"]
    assert (row["chosen"], row["pairs"]) == (0.5, 60)
    assert row["chosen 95 %"] == [0.0, 1.0]
