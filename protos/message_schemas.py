"""Writes JSON Schemas of the messages that travel as JSON, generated from the .proto files and their
comments.

`python -m protos.message_schemas protos docs/schemas` writes a file for each message in `PUBLISHED`. buf's
plugin (protoc-gen-jsonschema) cannot be used: it describes protobuf's own JSON, in which enumeration values
have their prefix and 64-bit integers are strings. Messages are written differently here (`message_json`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

from lookout.v1 import (
    access_pb2,
    actions_pb2,
    gateway_pb2,
    masks_pb2,
    media_pb2,
    memory_pb2,
    notifications_pb2,
)
from lookout.wire.message_json import TIMESTAMP, enum_name
from lookout.wire.tenants import TENANT_PATTERN

#: file name: message
PUBLISHED: Final = {
    "watch": "lookout.v1.Watch",
    "camera": "lookout.v1.Camera",
    "verdict": "lookout.v1.Verdict",
    "alert": "lookout.v1.Alert",
    "label": "lookout.v1.Label",
    "incident-action": "lookout.v1.IncidentAction",
    "audit-entry": "lookout.v1.AuditEntry",
    "notification": "lookout.v1.Notification",
    "notification-event": "lookout.v1.NotificationEvent",
    "recording-job": "lookout.v1.RecordingJob",
    "recording-answers": "lookout.v1.RecordingAnswers",
}
_PACKAGE: Final = "lookout.v1."
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_Field = FieldDescriptorProto
#: other scalar types are integers, which a JSON number represents exactly
_SCALARS: Final[Mapping[int, dict[str, Any]]] = {
    _Field.TYPE_STRING: {"type": "string"},
    _Field.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    _Field.TYPE_BOOL: {"type": "boolean"},
    _Field.TYPE_DOUBLE: {"type": "number"},
    _Field.TYPE_FLOAT: {"type": "number"},
}


#: patterns of text fields, by field name
_PATTERNS: Final = {"tenant": TENANT_PATTERN}


def schemas(protos: Path) -> dict[str, dict[str, Any]]:
    """Return the schema of each published message, by file name.

    Args:
        protos: The folder that contains `lookout/v1/*.proto`.
    """
    messages, comments = _read(protos)
    schemas = {}
    for name, message in PUBLISHED.items():
        definitions: dict[str, dict[str, Any]] = {}
        _define(message, messages, comments, definitions)
        top = definitions.pop(message)
        defs = {title.removeprefix(_PACKAGE): body for title, body in sorted(definitions.items())}
        schemas[name] = {"$schema": _DIALECT, "title": message, **top, **({"$defs": defs} if defs else {})}
    return schemas


def bundle(protos: Path) -> dict[str, dict[str, Any]]:
    """Return the schemas of all messages in the gateway's API, by name, as OpenAPI components.

    Args:
        protos: The folder that contains `lookout/v1/*.proto`.
    """
    messages, comments = _read(protos)
    definitions: dict[str, dict[str, Any]] = {}
    for module in (gateway_pb2, actions_pb2, access_pb2, masks_pb2, media_pb2):
        for name in module.DESCRIPTOR.message_types_by_name:
            _define(_PACKAGE + name, messages, comments, definitions)
    parts = (
        memory_pb2.FindResponse,
        memory_pb2.SimilarResponse,
        notifications_pb2.TryNotificationResponse,
        notifications_pb2.ListSecondModelsResponse,
    )
    for part in parts:
        _define(part.DESCRIPTOR.full_name, messages, comments, definitions)
    text = json.dumps({name.removeprefix(_PACKAGE): body for name, body in sorted(definitions.items())})
    schemas: dict[str, dict[str, Any]] = json.loads(text.replace("#/$defs/", "#/components/schemas/"))
    return schemas


def _read(protos: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return messages and enumerations by full name, and comments by the full name of a message, field or
    enumeration."""
    protoc = import_module("grpc_tools.protoc")
    sources = sorted(str(path) for path in (protos / "lookout/v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        google = files("grpc_tools") / "_proto"
        code = protoc.main(
            [
                "protoc",
                f"-I{protos}",
                f"-I{google}",
                f"--descriptor_set_out={out}",
                "--include_source_info",
                *sources,
            ]
        )
        if code != 0:
            raise SystemExit(f"protoc ended with code {code}")
        described = FileDescriptorSet.FromString(out.read_bytes())
    comments_by_name: dict[str, Any] = {}
    comments: dict[str, str] = {}
    for file in described.file:
        paths: dict[tuple[int, ...], str] = {}
        for number, message in enumerate(file.message_type):
            _index(message, file.package, (4, number), comments_by_name, paths)
        for number, enum in enumerate(file.enum_type):
            comments_by_name[f"{file.package}.{enum.name}"] = enum
            paths[5, number] = f"{file.package}.{enum.name}"
        for place in file.source_code_info.location:
            name = paths.get(tuple(place.path))
            text = " ".join((place.leading_comments + " " + place.trailing_comments).split())
            if name and text:
                comments[name] = text
    return comments_by_name, comments


def _index(
    message: DescriptorProto,
    package: str,
    path: tuple[int, ...],
    found: dict[str, Any],
    paths: dict[tuple[int, ...], str],
) -> None:
    name = f"{package}.{message.name}"
    found[name], paths[path] = message, name
    for number, field in enumerate(message.field):
        paths[*path, 2, number] = f"{name}.{field.name}"
    for number, nested in enumerate(message.nested_type):
        _index(nested, name, (*path, 3, number), found, paths)
    for enum in message.enum_type:
        found[f"{name}.{enum.name}"] = enum


def _define(
    name: str, messages: Mapping[str, Any], comments: Mapping[str, str], done: dict[str, dict[str, Any]]
) -> None:
    if name in done:
        return
    body: dict[str, Any] = {"type": "object", "properties": {}}
    if name in comments:
        body["description"] = comments[name]
    done[name] = body
    for field in messages[name].field:
        schema = _schema(field, messages, comments, done)
        if field.label == _Field.LABEL_REPEATED:
            schema = {"type": "array", "items": schema}
        if text := comments.get(f"{name}.{field.name}"):
            schema["description"] = text
        body["properties"][field.name] = schema


def _schema(
    field: FieldDescriptorProto,
    messages: Mapping[str, Any],
    comments: Mapping[str, str],
    done: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    kind = field.type_name.removeprefix(".")
    if kind == TIMESTAMP:
        return {"type": "string", "format": "date-time"}
    if field.type == _Field.TYPE_ENUM:
        names = [enum_name(kind.rsplit(".", 1)[-1], value.name) for value in messages[kind].value]
        return {"type": "string", "enum": names}
    if field.type == _Field.TYPE_MESSAGE:
        _define(kind, messages, comments, done)
        return {"$ref": f"#/$defs/{kind.removeprefix(_PACKAGE)}"}
    pattern = {"pattern": _PATTERNS[field.name]} if field.name in _PATTERNS else {}
    return {**_SCALARS.get(field.type, {"type": "integer"}), **pattern}


def write(protos: Path, folder: Path, api: Path | None = None) -> None:
    """Write the published schemas into a folder, and the schemas of the gateway's API into a file."""
    folder.mkdir(parents=True, exist_ok=True)
    if api is not None:
        api.write_text(json.dumps(bundle(protos), indent=1, ensure_ascii=False) + "\n")
    for name, schema in schemas(protos).items():
        (folder / f"{name}.json").write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("protos", type=Path, help="the folder that contains lookout/v1/*.proto")
    parser.add_argument("folder", type=Path, help="where to write the schemas")
    parser.add_argument("api", type=Path, nargs="?", help="where to write the schemas of the gateway's API")
    options = parser.parse_args()
    write(options.protos, options.folder, options.api)


if __name__ == "__main__":
    main()
