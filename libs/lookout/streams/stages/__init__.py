"""The common part of decode, prune-encode and prefill, which collect the records of each camera in units.

A camera has one open **unit**: an epoch of segments, a stride block or a window. A stage defines what a unit
is, how a record joins it and what is computed when it closes (`KeyedStage`). This package restores units from
checkpoints, removes the tensors of a failed record from the store, and checks erasures.
"""

from lookout.streams.stages.events import (
    CAUSES as CAUSES,
    envelope as envelope,
    forwarded as forwarded,
    gap as gap,
    late as late,
    skipped as skipped,
)
from lookout.streams.stages.lineage import check_lineage as check_lineage, lineage_record as lineage_record
from lookout.streams.stages.stage import (
    Camera as Camera,
    Draft as Draft,
    KeyedStage as KeyedStage,
    ProducingStage as ProducingStage,
    reference_of as reference_of,
)
