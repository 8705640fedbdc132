"""Settings of a tensor store whose constants a test changes."""

from __future__ import annotations

from typing import Any, ClassVar

from lookout.runtime.store import StoreSettings


def store_settings(**values: Any) -> StoreSettings:
    """Settings, and constants such as `redis_retry_s`, by their names."""
    fields = {name: value for name, value in values.items() if name in StoreSettings.model_fields}
    changed = {name: value for name, value in values.items() if name not in fields}
    unknown = [name for name in changed if not hasattr(StoreSettings, name)]
    assert not unknown, unknown
    body = {**changed, "__annotations__": dict.fromkeys(changed, ClassVar[Any]), "__module__": __name__}
    return type("ChangedStoreSettings", (StoreSettings,), body)(**fields)  # type: ignore[no-any-return]
