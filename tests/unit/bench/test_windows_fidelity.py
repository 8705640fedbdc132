"""How the default's rule is chosen on cameras that are not reported."""

from __future__ import annotations

import numpy as np

from bench.windows_fidelity import FULL, Answered, chosen_elsewhere


def camera(apart: dict[str, tuple[float, float]]) -> dict[str, Answered]:
    """Answers of a camera by setting, of (distance from full windows, FLOPs)."""
    since = np.array([0, 1, 2])
    return {
        name: Answered(np.where(since > 0, dp, 0.0)[:, None], np.full(3, flops), since)
        for name, (dp, flops) in apart.items()
    }


def test_each_half_reports_what_the_other_half_chose() -> None:
    told = [
        {FULL.name: (0.0, 50.0), "cheap": (0.02 if odd else 0.001, 10.0), "dear": (0.001, 30.0)}
        for odd in (False, True, False, True)
    ]
    found = [camera(one) for one in told]
    dense = [camera({"dense": (0.0, 100.0)})["dense"]] * 4
    out = chosen_elsewhere(found, dense, list(told[0]), bound=0.003)
    assert out["settings"] == ["cheap", "dear"]  # the even cameras see no harm in it, the odd ones do
    assert 0.009 < out["dp"] < 0.011
    assert chosen_elsewhere(found[:1], dense[:1], list(told[0]), bound=0.003) == {}
