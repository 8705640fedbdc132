"""The skeleton of a keyed stage, shared by decode, prune-encode and prefill.

A stage collects the records of one camera in an open **unit**: an epoch of segments, a stride block or a
window. The stage defines what a unit is, how a record joins it and what closing it computes (`KeyedStage`).
The skeleton restores units from checkpoints, removes what a failed record put into the tensor store, and
checks erasures.
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
