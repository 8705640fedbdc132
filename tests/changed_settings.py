"""Settings whose constants, or what is derived from others, a test changes."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from lookout.runtime.store import StoreSettings

T = TypeVar("T", bound=BaseModel)


def changed_settings(kind: type[T], **values: Any) -> tuple[type[T], dict[str, Any]]:
    """Return a class of settings with other constants, such as `redis_retry_s`, and its fields' values."""
    fields = {name: value for name, value in values.items() if name in kind.model_fields}
    changed = {name: value for name, value in values.items() if name not in fields}
    unknown = [name for name in changed if not hasattr(kind, name)]
    assert not unknown, unknown
    body = {**changed, "__annotations__": dict.fromkeys(changed, ClassVar[Any]), "__module__": __name__}
    return type(f"Changed{kind.__name__}", (kind,), body), fields


def store_settings(**values: Any) -> StoreSettings:
    """Settings and constants of a tensor store, by their names."""
    kind, fields = changed_settings(StoreSettings, **values)
    return kind(**fields)
