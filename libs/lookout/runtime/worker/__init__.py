"""The runtime of a service. A guide for service authors.

**A service is a handler.** Derive settings from `ServiceSettings` (each field is `LOOKOUT_<FIELD>`) and a
handler from `Handler[State]`, then:

    # services/recorder/__main__.py
    from lookout.runtime.worker import main
    from lookout.wire import VERDICTS, Flow
    main(Flow("recorder", VERDICTS), RecorderSettings, make_handler)    # checks, serves, works, exits

A `Flow` declares the topics that a service reads and writes. Several services may read the same topic,
because each has its own consumer group, named after the service. A service need not write outputs. A service
that only answers calls has no handler: `serve("recall", RecallSettings, add)`, where `add(context)` adds its
servicers.

`make_handler(context)` builds the handler. `context` has `settings`, `address` (host:port of this instance's
gRPC), `grpc.add(lambda server: add_TensorServiceServicer_to_server(servicer, server),
"lookout.v1.TensorService")`, `table("watches.v1")`, `rereader.read(topic, partition, offsets)`,
`downstream(Stage.PREFILL, changed)` (committed offsets of the next stage: what a store may evict),
`metrics.registry`, `health.block/clear`, `on_close(...)`. `supervisor` starts threads, and ends the process
when one of them dies; pass it to every `BatchingThread`. Raise `StartupError("LOOKOUT_X=...: what is wrong,
what to do")` for anything that must stop the service; `checked_model(settings, folder)` does so for a model.

**The handler** never touches Kafka:

    class Decode(Handler[State]):
        config_digest = ...      # digest(...) of what changes results
        tick_every = 1.0         # optional

        def load(self, camera, stored):           # stored: StoredCheckpoint | None
            ...                                   # stored.own(MyState); rereader for its records
        def handle(self, state, record):          # record: Record(topic, partition, offset, camera, ...)
            return Result([Output("frames.v1", record.camera, message.SerializeToString())], checkpoint)
        def tick(self, state, now): ...           # silence -> gap: a Result or None
        def rejected(self, state, record, why): ...  # what else to write alongside a dead letter

- `handle` runs on compute threads: one call at a time for a camera, in order; cameras run in parallel. It may
  change `state`.
- A `Result` (outputs, checkpoint, dead letter) is committed with the record's offset in one transaction, or
  not at all. Outputs go to the partition number that the record came from. `checkpoint` is
  `own_checkpoint(state)` of any protobuf message (the four stages have parts of `lookout.v1.Checkpoint`), or
  None if it is unchanged; the worker fills in `config_digest` and `record_ms`.
- **State must be a function of the newest checkpoint and the records that it names** (`offsets`, read again
  with the rereader): a crash, a rebalance, an aborted transaction or an unexpected exception drops the state,
  and `load` is called with the newest checkpoint again. Records after that checkpoint's commit are delivered
  again, those before it are not.
- **Be deterministic**: outputs follow from records, state and configuration, never from the clock
  (`record.timestamp_ms` is Kafka's and stays the same in a replay). Only decode turns clocks into records, in
  `tick`.
- Errors. `BadRecordError(reason, detail)`: the record becomes a dead letter (original bytes, reason in
  headers), and the stream continues. `TransientError(message, give_up_s)` (and connection errors, time-outs,
  gRPC UNAVAILABLE): this camera retries in place while others continue; after `give_up_s` the record is a
  dead letter `unavailable`. `DeviceFailedError` (and torch's own CUDA errors): the service is not ready and
  retries for a few seconds, then the process ends with exit code 4; nothing is committed for the record. Any
  other error: the state is dropped and the record tried `attempts` times, then it becomes a dead letter
  `internal-error`. Raise BadRecordError and TransientError before changing state. A `Result` may also carry a
  `dead_letter` itself, together with outputs.
- `shared_settings` ({**settings.shared, "grid": "16x16"}) are values that all running instances of the stage
  must share; an instance with other values refuses to start. `Result.counts` are added to
  `lookout_events_total` at the commit; `events` names them all, with their meanings. `forget(state)` returns
  what to write when a camera is forgotten.
- `over_budget()` names partitions to pause. `committed(deliveries)` tells which outputs are durable, with
  their offsets (`Output.tensors` names the tensors they carry), and `dropped(outputs)` which never will be.
  `Result.then` is called once a result is committed. `released(camera, partition)`: drop what is cached for
  the camera, because its state is loaded again here or elsewhere. `leave(state)`: free what the old state
  holds. `revoked(partition)`: the whole partition belongs to another worker. All of these return at once.

**Exit codes** of a service: 0 stopped, 1 failed, 2 misconfigured (the message names the setting), 3 fenced:
another process runs with the same `LOOKOUT_INSTANCE`, 4 the device failed.

**Probes** on `metrics_port`: /livez (the polling thread runs), /readyz (settled in the group, Kafka answers),
/metrics. The gRPC health service reports the same as /readyz.
"""

from lookout.models.batching import BatchingThread as BatchingThread
from lookout.runtime.worker.failures import (
    is_device_failure as is_device_failure,
    is_transient as is_transient,
)
from lookout.runtime.worker.offsets import Downstream as Downstream
from lookout.runtime.worker.record_reader import RecordReader as RecordReader
from lookout.runtime.worker.records import (
    WORKER_REASONS as WORKER_REASONS,
    DeadLetter as DeadLetter,
    Delivery as Delivery,
    Handler as Handler,
    Output as Output,
    Record as Record,
    RecordSource as RecordSource,
    Result as Result,
    StoredCheckpoint as StoredCheckpoint,
    own_checkpoint as own_checkpoint,
)
from lookout.runtime.worker.refusals import LeftOut as LeftOut, quota_letter as quota_letter
from lookout.runtime.worker.sampling import sampling_text as sampling_text
from lookout.runtime.worker.service import (
    Context as Context,
    end_process as end_process,
    main as main,
    serve as serve,
)
from lookout.runtime.worker.settings import (
    CanarySettings as CanarySettings,
    FetchSettings as FetchSettings,
    Listed as Listed,
    ModelSettings as ModelSettings,
    ServiceSettings as ServiceSettings,
    WindowPlanSettings as WindowPlanSettings,
    digest as digest,
    load_settings as load_settings,
)
from lookout.runtime.worker.startup import (
    checked_model as checked_model,
    loading as loading,
    model_folder as model_folder,
)
from lookout.runtime.worker.supervision import Supervisor as Supervisor, ThreadDiedError as ThreadDiedError
from lookout.runtime.worker.tables import Table as Table, View as View
from lookout.runtime.worker.transactions import Topics as Topics
from lookout.runtime.worker.worker import Worker as Worker
