"""Settings with values of another kind: no word of pydantic's is shown."""

from __future__ import annotations

import pytest

from lookout.errors import StartupError
from lookout.runtime.worker import ServiceSettings, load_settings
from lookout.services.decode.settings import DecodeSettings
from lookout.services.prefill.settings import PrefillSettings


@pytest.mark.parametrize(
    ("kind", "name", "value", "why"),
    [
        (
            DecodeSettings,
            "ANCHOR_SAMPLES",
            "",
            "a whole number is expected; to leave it unset, omit the setting",
        ),
        (DecodeSettings, "ANCHOR_SAMPLES", "many", "a whole number is expected"),
        (DecodeSettings, "ANCHOR_SAMPLES", "0", "a number of at least 1 is expected"),
        (
            DecodeSettings,
            "QUOTA_BYTES",
            "",
            "a whole number is expected; to leave it unset, omit the setting",
        ),
        (DecodeSettings, "QUOTA_WORK_S", "x", "a number is expected"),
        (DecodeSettings, "SILENCE_S", "0", "a number above 0 is expected"),
        (DecodeSettings, "PRUNE", "perhaps", "true or false is expected"),
        (DecodeSettings, "BACKEND", "gpu", "'software', 'nvdec' or 'auto' is expected"),
        (DecodeSettings, "FIT", "", "to leave it unset, omit the setting"),
        (
            PrefillSettings,
            "CUDA_GRAPHS",
            "",
            "true or false is expected; to leave it unset, omit the setting",
        ),
    ],
)
def test_a_value_of_another_kind_is_told_in_words(
    kind: type[ServiceSettings], name: str, value: str, why: str
) -> None:
    with pytest.raises(StartupError) as failure:
        load_settings(kind, {"LOOKOUT_MODE": "local", f"LOOKOUT_{name}": value})
    text = str(failure.value)
    assert f"LOOKOUT_{name}={value!r}: " in text
    assert why in text
    assert "Input should" not in text


@pytest.mark.parametrize("value", ["", "big"])
def test_a_record_that_is_no_json_is_named(value: str) -> None:
    """It was a traceback."""
    with pytest.raises(StartupError, match="LOOKOUT_STORE is not a JSON object: write a JSON object"):
        load_settings(DecodeSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_STORE": value})


@pytest.mark.parametrize("kind", [DecodeSettings, PrefillSettings])
def test_every_fault_of_every_setting_is_one_error(kind: type[ServiceSettings]) -> None:
    """Each field gets what few fields take; those of every service are tried with decode alone."""
    faults = []
    shared = ServiceSettings.model_fields if kind is PrefillSettings else {}
    for field in kind.model_fields.keys() - shared.keys():
        for value in ("", "no such value", "-1", "nan"):
            try:
                load_settings(kind, {"LOOKOUT_MODE": "local", f"LOOKOUT_{field.upper()}": value})
            except StartupError as error:
                faults.append(str(error))
    assert len(faults) > 50
    assert not [fault for fault in faults if "nput should" in fault]
