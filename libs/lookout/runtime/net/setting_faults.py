"""Descriptions of invalid settings in this project's words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final[Mapping[str, str]] = {
    "int_parsing": "a whole number is expected",
    "int_type": "a whole number is expected",
    "int_from_float": "a whole number is expected",
    "int_parsing_size": "a smaller number is expected",
    "float_parsing": "a number is expected",
    "float_type": "a number is expected",
    "finite_number": "a finite number is expected",
    "bool_parsing": "true or false is expected",
    "bool_type": "true or false is expected",
    "string_type": "a text is expected",
    "dict_type": "an object is expected",
    "model_type": "an object is expected",
    "literal_error": "{expected} is expected",
    "enum": "{expected} is expected",
    "greater_than": "a number above {gt} is expected",
    "greater_than_equal": "a number of at least {ge} is expected",
    "less_than": "a number below {lt} is expected",
    "less_than_equal": "a number of at most {le} is expected",
    "extra_forbidden": "there is no such field",
    "missing": "it is missing",
}
"""By pydantic's error type."""


def fault_text(fault: Mapping[str, Any]) -> str:
    """Return a sentence about what is wrong with a value.

    Args:
        fault: One of pydantic's `ValidationError.errors()`, with its context.
    """
    words = _WORDS.get(fault["type"])
    if words is None:
        return str(fault["msg"]).removeprefix("Value error, ")
    context = fault.get("ctx", {}).items()
    text = words.format(
        **{name: f"{value:g}" if isinstance(value, float) else value for name, value in context}
    )
    # An empty text is a value, although people may write it to mean "unset".
    return f"{text}; to leave it unset, omit the setting" if fault["input"] == "" else text
