"""A service of your own: it counts each camera's yes answers, each exactly once, whatever is killed.

It reads `verdicts.v1`, as the service alerts does, keeps its state in checkpoints, writes no topic, turns
records that it cannot read into dead letters, and answers over gRPC (`example.Tally/Get`).

Create its topics once: `python examples/service.py --create-topics`. Then run it with the settings that every
service has (`LOOKOUT_BOOTSTRAP`, `LOOKOUT_REDIS_URL`, `LOOKOUT_INSTANCE`, ...) and its own,
`LOOKOUT_TALLY_THRESHOLD`.
"""

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import grpc
from google.protobuf.struct_pb2 import Struct
from pydantic import Field

from lookout.errors import BadRecordError
from lookout.local import create_topics
from lookout.runtime.net import KafkaSecurity, load_connections
from lookout.runtime.worker import (
    Context,
    Handler,
    Record,
    Result,
    ServiceSettings,
    StoredCheckpoint,
    main,
    own_checkpoint,
)
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import VERDICTS, Flow, WireError, from_json

TALLY = Flow("tally", VERDICTS)


class TallySettings(ServiceSettings):
    tally_threshold: float = Field(0.5, ge=0, le=1, description="p(yes) from which an answer counts as yes")


@dataclass
class Camera:
    answered: int = 0
    yes: int = 0


class Tally(Handler[Camera]):
    """Counts answers in `counts`, which the gRPC call reads."""

    events: Mapping[str, str] = MappingProxyType({"answered": "answers counted"})

    def __init__(self, threshold: float) -> None:
        self._threshold, self._lock = threshold, threading.Lock()
        self.counts: dict[str, Camera] = {}

    def load(self, camera: str, stored: StoredCheckpoint | None) -> Camera:
        before = stored.own(Struct) if stored is not None else None
        state = Camera() if before is None else Camera(int(before["answered"]), int(before["yes"]))
        with self._lock:
            self.counts[camera] = state
        return state

    def handle(self, state: Camera, record: Record) -> Result:
        try:
            verdict = from_json(record.value, Verdict)
        except WireError as error:
            raise BadRecordError("bad-verdict", str(error)) from error
        if not verdict.HasField("p_yes"):
            return Result()
        state.answered += 1
        state.yes += verdict.p_yes >= self._threshold
        message = Struct()
        message.update({"answered": state.answered, "yes": state.yes})
        return Result(checkpoint=own_checkpoint(message), counts={"answered": 1})

    def get(self, request: Struct, context: grpc.ServicerContext) -> Struct:
        answer = Struct()
        with self._lock:
            answer.update({camera: [state.answered, state.yes] for camera, state in self.counts.items()})
        return answer


def make_handler(context: Context[TallySettings]) -> Tally:
    handler = Tally(context.settings.tally_threshold)
    call = grpc.unary_unary_rpc_method_handler(handler.get, Struct.FromString, Struct.SerializeToString)
    service = grpc.method_handlers_generic_handler("example.Tally", {"Get": call})
    context.grpc.add(lambda server: server.add_generic_rpc_handlers((service,)), "example.Tally")
    return handler


if __name__ == "__main__":
    if "--create-topics" in sys.argv:
        security = load_connections(KafkaSecurity).kafka_security()  # the password, if the settings name one
        create_topics(os.environ["LOOKOUT_BOOTSTRAP"], topics=TALLY.topics, security=security)
        sys.exit()
    main(TALLY, TallySettings, make_handler)
