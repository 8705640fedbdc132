"""What strangers make of an honest record: seeded changes of bytes, of JSON and of protobuf messages.

The same seed gives the same bytes. A mutation never raises: where it does not apply (no text in a message),
it changes bytes instead, so that nearly every call gives an input that differs from the honest one.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["BINARY", "BYTES", "JSON", "TEXTS", "WHOLE", "filled", "messages", "mutate_message"]

Chance = random.Random
M = TypeVar("M", bound=Message)
#: (honest bytes, the message they are, seeded choices) -> strange bytes
Mutation = Callable[[bytes, type[Message], Chance], bytes]

#: numbers at which implementations break: signs, widths of integers, what a JSON number holds exactly
WHOLE: Final = (
    *(0, 1, -1, 2, 255, 256, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *(1 << 53, (1 << 53) + 1, (1 << 63) - 1, (1 << 64) - 1, -(1 << 31), -(1 << 63)),
)
REAL: Final = (0.0, -0.0, -1.0, 1e-320, 1e300, -1e300, math.nan, math.inf, -math.inf)
#: texts that terminals, pages, logs and parsers obey
TEXTS: Final = (
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://stranger.example\x1b\\link",
    "\x9b2J",
    "\u202egnp.exe\u202c",
    "[/x] [bold] [link=http://stranger.example]",
    "<script>alert(1)</script>",
    "{{7*7}}${7*7}",
    "line\r\nlookout_fake_metric 1\n",
    "\x00",
    "../../../../etc/passwd",
    "1e300000000",
    "",
    "é" * 150,
)
LARGE: Final = 900_000
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}
_REALS: Final = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


# ---- bytes


def noise(_value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """Random bytes."""
    return chance.randbytes(chance.choice((1, 2, 7, 64, 300, 4096)))


def empty(_value: bytes, _kind: type[Message], _chance: Chance) -> bytes:
    """No byte."""
    return b""


def truncated(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """The end is missing."""
    return value[: chance.randrange(max(1, len(value)))]


def flipped(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """One to eight bytes are others."""
    out = bytearray(value or b"\0")
    for _ in range(chance.randint(1, 8)):
        out[chance.randrange(len(out))] ^= chance.randint(1, 255)
    return bytes(out)


def spliced(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """A part of it stands twice, or is missing in the middle."""
    first, second = sorted((chance.randrange(len(value) + 1), chance.randrange(len(value) + 1)))
    return value[:second] + value[first:]


def inserted(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """Random bytes in the middle."""
    place = chance.randrange(len(value) + 1)
    return value[:place] + chance.randbytes(chance.choice((1, 4, 40))) + value[place:]


BYTES: Final[dict[str, Mutation]] = {
    "noise": noise,
    "empty": empty,
    "truncated": truncated,
    "flipped": flipped,
    "spliced": spliced,
    "inserted": inserted,
}


# ---- protobuf


def _places(message: Message, depth: int = 0) -> Iterator[tuple[Message, Any]]:
    """Every field of a message and of the messages in it that are set."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None or depth > 6:
            continue
        if field.is_repeated:
            for part in getattr(message, field.name)[:4]:
                yield from _places(part, depth + 1)
        elif message.HasField(field.name):
            yield from _places(getattr(message, field.name), depth + 1)


def _place(
    message: Message, chance: Chance, wanted: Callable[[Any], bool]
) -> tuple[Message, FieldDescriptor] | None:
    places = [(part, field) for part, field in _places(message) if wanted(field)]
    return chance.choice(places) if places else None


def _whole(field: Any, chance: Chance) -> int:
    low, high = _RANGES[field.cpp_type]
    if chance.random() < 0.5:
        return chance.randint(low, high)
    return chance.choice([number for number in (*WHOLE, low, high) if low <= number <= high])


def _value(field: Any, chance: Chance) -> Any:
    if field.cpp_type in _RANGES:
        return _whole(field, chance)
    if field.cpp_type in _REALS:
        return chance.choice((*REAL, chance.uniform(-1e6, 1e6)))
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(chance.choice((0, 1, 3, 64, 5000)))
    return chance.choice((*TEXTS, "a" * 5000))


def _set(part: Message, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(part, field.name).append(value)
    else:
        setattr(part, field.name, value)


def mutate_message(message: Message, chance: Chance) -> None:
    """Change one field somewhere in a message; lists grow, shrink and repeat."""
    part, field = chance.choice(list(_places(message)))
    if field.is_repeated:
        _mutate_list(getattr(part, field.name), field, chance)
    elif field.message_type is not None:
        if part.HasField(field.name) and chance.random() < 0.5:
            part.ClearField(field.name)
        else:
            getattr(part, field.name).SetInParent()
    else:
        _set(part, field, _value(field, chance))


def _mutate_list(entries: Any, field: Any, chance: Chance) -> None:
    deed = chance.choice(("clear", "more", "many", "pop", "turn"))
    if deed == "clear":
        del entries[:]
    elif deed == "more" or not entries:
        if field.message_type is not None:
            entries.add()
        else:
            entries.append(_value(field, chance))
    elif deed == "many":
        entries.MergeFrom([entries[0]] * chance.randint(1, 300))
    elif deed == "pop":
        entries.pop()
    else:
        entries.MergeFrom(list(entries)[::-1])


def _parsed(value: bytes, kind: type[Message]) -> Message:
    message = kind()
    message.ParseFromString(value)
    return message


def _with_field(wanted: Callable[[Any], bool], change: Callable[[Message, Any, Chance], None]) -> Mutation:
    def mutation(value: bytes, kind: type[Message], chance: Chance) -> bytes:
        message = _parsed(value, kind)
        place = _place(message, chance, wanted)
        if place is None:
            return inserted(value, kind, chance)
        change(*place, chance)
        return message.SerializeToString()

    return mutation


def _is_text(field: Any) -> bool:
    return bool(field.type == FieldDescriptor.TYPE_STRING)


def _large(part: Message, field: Any, chance: Chance) -> None:
    letter = chance.choice("a[\u202e")
    _set(part, field, (letter * (LARGE // len(letter.encode()))))


def _repeat(part: Message, field: Any, _chance: Chance) -> None:
    entries = getattr(part, field.name)
    if not entries and field.message_type is not None:
        entries.add()
    if entries and field.message_type is not None:
        size = max(1, entries[0].ByteSize() + 3)
        entries.MergeFrom([entries[0]] * min(20_000, LARGE // size))
    elif entries:
        entries.extend([entries[0]] * 20_000)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _wire_type(value: bytes, kind: type[Message], chance: Chance) -> bytes:
    """A field of the message with another wire type than its own."""
    field = chance.choice(list(kind.DESCRIPTOR.fields))
    wire_type = chance.choice((0, 1, 2, 3, 4, 5, 6, 7))
    return value + _varint(field.number << 3 | wire_type) + chance.randbytes(12)


def _nested(value: bytes, kind: type[Message], chance: Chance) -> bytes:
    """Messages within messages, deeper than a parser follows."""
    fields = [field for field in kind.DESCRIPTOR.fields if field.message_type is not None]
    tag = _varint(chance.choice(fields).number << 3 | 2) if fields else b"\x0a"
    inner = b""
    for _ in range(chance.choice((50, 101, 5000))):
        inner = tag + _varint(len(inner)) + inner
        if len(inner) > LARGE // 20:
            break
    return value + inner


def _unknown(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """Fields that nobody knows."""
    more = b"".join(
        _varint(chance.randint(1000, 500_000) << 3 | 2) + b"\x05" + chance.randbytes(5) for _ in range(200)
    )
    return value + more


def _several(value: bytes, kind: type[Message], chance: Chance) -> bytes:
    """Two to six fields are others."""
    message = _parsed(value, kind)
    for _ in range(chance.randint(2, 6)):
        mutate_message(message, chance)
    return message.SerializeToString()


def _json_instead(_value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    return json.dumps({"camera": chance.choice(TEXTS), "epoch": chance.choice(WHOLE)}).encode()


def _is_number(field: Any) -> bool:
    return field.cpp_type in _RANGES


BINARY: Final[dict[str, Mutation]] = {
    **BYTES,
    "absurd-number": _with_field(
        _is_number, lambda part, field, chance: _set(part, field, _whole(field, chance))
    ),
    "no-number": _with_field(
        lambda field: field.cpp_type in _REALS,
        lambda part, field, chance: _set(part, field, chance.choice(REAL)),
    ),
    "strange-text": _with_field(
        _is_text, lambda part, field, chance: _set(part, field, chance.choice(TEXTS))
    ),
    "large-text": _with_field(_is_text, _large),
    "long-list": _with_field(lambda field: field.is_repeated, _repeat),
    "field-left-out": _with_field(
        lambda field: True, lambda part, field, chance: part.ClearField(field.name)
    ),
    "several-fields": _several,
    "wire-type": _wire_type,
    "nested": _nested,
    "unknown-fields": _unknown,
    "json-instead": _json_instead,
}


# ---- JSON


def _spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every value in a JSON object."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from _spots(inner, (*path, key))


def _replaced(value: bytes, chance: Chance, new: Callable[[Any], Any]) -> bytes:
    """The object with one value replaced; raw text stands for itself."""
    whole = json.loads(value)
    spots = list(_spots(whole))
    if not spots:
        return b"{}"
    *path, last = chance.choice(spots)
    target = whole
    for key in path:
        target = target[key]
    target[last] = new(target[last])
    text = json.dumps(whole)
    return text.encode()


def _raw(value: bytes, chance: Chance, raw: str) -> bytes:
    """The object with one value replaced by text that is no Python value."""
    mark = "4f1c2a77-raw"
    return _replaced(value, chance, lambda _: mark).replace(f'"{mark}"'.encode(), raw.encode())


def _json(new: Callable[[Any, Chance], Any]) -> Mutation:
    return lambda value, _kind, chance: _replaced(value, chance, lambda old: new(old, chance))


def _json_raw(*raws: str) -> Mutation:
    return lambda value, _kind, chance: _raw(value, chance, chance.choice(raws))


def _left_out(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    whole = json.loads(value)
    if whole:
        del whole[chance.choice(list(whole))]
    return json.dumps(whole).encode()


def _twice(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    """A name stands twice."""
    whole = json.loads(value)
    name = chance.choice(list(whole) or ["id"])
    return value.rstrip()[:-1] + f", {json.dumps(name)}: {json.dumps(chance.choice(TEXTS))}}}".encode()


def _unknown_names(value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    whole = json.loads(value) | {f"x{number}": chance.choice(TEXTS) for number in range(300)}
    return json.dumps(whole).encode()


def _deep(_value: bytes, _kind: type[Message], chance: Chance) -> bytes:
    depth = chance.choice((90, 990, 100_000))
    return chance.choice((b"[" * depth, b'{"rule":' * depth, b"[" * depth + b"]" * depth))


def _long_list(value: bytes, kind: type[Message], chance: Chance) -> bytes:
    """A list of thousands: cameras, zones, evidence."""
    lists = [field for field in kind.DESCRIPTOR.fields if field.is_repeated]
    whole = json.loads(value)
    if lists:
        field = chance.choice(lists)
        whole[field.name] = [{} if field.message_type is not None else "a"] * 50_000
    else:
        whole["cameras"] = ["a"] * 50_000
    return json.dumps(whole).encode()


def _binary_instead(value: bytes, kind: type[Message], chance: Chance) -> bytes:
    return filled(kind, "strange", chance).SerializeToString()


JSON: Final[dict[str, Mutation]] = {
    **BYTES,
    "absurd-number": _json(lambda old, chance: chance.choice((*WHOLE, 10**30, -(10**30)))),
    "many-digits": _json_raw("9" * 5000, "-" + "9" * 5000, "0." + "0" * 5000 + "1", "1e" + "9" * 400),
    "no-number": _json_raw("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "01", "+1", "0x10"),
    "strange-text": _json(lambda old, chance: chance.choice(TEXTS)),
    "large-text": _json(lambda old, chance: chance.choice("a[\u202e") * (LARGE // 6)),
    "lone-surrogate": _json_raw('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"'),
    "wrong-type": _json(lambda old, chance: chance.choice((None, True, [], {}, [[]], {"a": 1}, "text", 7))),
    "strange-time": _json(
        lambda old, chance: chance.choice(
            ("9999999-01-01T00:00:00Z", "0000-00-00T00:00:00Z", "2026-01-31T25:61:61Z", "now", "2026-01-31")
        )
    ),
    "field-left-out": _left_out,
    "name-twice": _twice,
    "unknown-fields": _unknown_names,
    "nested": _deep,
    "long-list": _long_list,
    "no-object": lambda value, kind, chance: chance.choice(
        (b"7", b'"text"', b"null", b"[]", b"true", b"nul")
    ),
    "not-utf8": lambda value, kind, chance: value.replace(b"e", b"\xff\xfe", 1),
    "binary-instead": _binary_instead,
}


def messages(message: Message, kind: type[M]) -> Iterator[M]:
    """A message, and those in it, that are of a kind."""
    if isinstance(message, kind):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from messages(inner, kind)


def filled(kind: type[Message], camera: str, chance: Chance, depth: int = 0) -> Message:
    """A message with every field set to something small that a reader might accept."""
    message = kind()
    taken: set[str] = set()
    for field in kind.DESCRIPTOR.fields:
        union = field.containing_oneof
        if union is not None:
            if union.name in taken:
                continue
            taken.add(union.name)
        _fill(message, field, camera, chance, depth)
    return message


def _fill(message: Message, field: Any, camera: str, chance: Chance, depth: int) -> None:
    name = field.name
    if field.message_type is not None:
        if depth > 4:
            return
        target = getattr(message, name).add() if field.is_repeated else getattr(message, name)
        target.CopyFrom(filled(type(target), camera, chance, depth + 1))
    elif _is_text(field):
        _set(message, field, camera if name in ("camera", "cameras", "id") else "x")
    elif field.type == FieldDescriptor.TYPE_BYTES:
        _set(message, field, chance.randbytes(16))
    elif field.cpp_type in _REALS:
        _set(message, field, 0.5)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        _set(message, field, False)
    else:
        _set(message, field, chance.randint(1, 3))
