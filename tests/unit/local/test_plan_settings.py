"""Back-tests plan windows as prefill does, wherever prefill was given other settings."""

from __future__ import annotations

import re
from pathlib import Path

from lookout.local import Fleet
from lookout.local.addresses import PLAN_SETTINGS, RECORDINGS_ROLES
from lookout.runtime.worker import ModelSettings, WindowPlanSettings
from lookout.streams import MAX_DAMAGE

CHART = Path(__file__).parents[3] / "charts/lookout/templates/recordings.yaml"


def test_every_setting_that_plans_windows_is_passed_on(tmp_path: Path) -> None:
    own = set(WindowPlanSettings.model_fields) - set(ModelSettings.model_fields) - {"token_replicas"}
    assert set(PLAN_SETTINGS) == own
    (names,) = re.findall(r"pick \$\.Values\.prefill\.settings (.*?) }}", CHART.read_text())
    assert set(re.findall(r'"(\w+)"', names)) == own
    given = {"prefill": {"key_every": "4", "batch": "2"}, "recordings": {"decoders": "1"}}
    fleet = Fleet(
        tmp_path / "fleet",
        kafka="127.0.0.1:1",
        redis_url="redis://127.0.0.1:1",
        stage_settings=given,
        recordings=[tmp_path],
    )
    for stage in RECORDINGS_ROLES:
        environment = fleet._environment(stage)
        assert environment["LOOKOUT_KEY_EVERY"] == "4"
        assert "LOOKOUT_BATCH" not in environment
    assert fleet._environment("recordings")["LOOKOUT_DECODERS"] == "1"


def test_the_default_share_of_damage_is_that_of_windows() -> None:
    assert WindowPlanSettings.model_fields["max_damage"].default == MAX_DAMAGE
