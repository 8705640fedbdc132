"""Camera health: faults of a camera, detected from data that decoding produces anyway.

`look_at` reduces sampled pictures to small planes, `observe` compares them with what the camera usually shows
at that hour, `advance` combines the faults into at most one incident. This package does not depend on Kafka.
"""

from __future__ import annotations

from lookout.video.health.faults import (
    FIXED as FIXED,
    LEARNED as LEARNED,
    CameraFault as CameraFault,
    Levels as Levels,
    Observation as Observation,
    Thresholds as Thresholds,
)
from lookout.video.health.incidents import (
    CameraHealth as CameraHealth,
    CameraIncident as CameraIncident,
    HealthEvent as HealthEvent,
    advance as advance,
    end as end,
    observe as observe,
    unlearned as unlearned,
)
from lookout.video.health.looks import (
    CELLS as CELLS,
    NO_LOOKS as NO_LOOKS,
    Looks as Looks,
    look_at as look_at,
)
from lookout.video.health.loops import NUMBERS as NUMBERS
from lookout.video.health.usual import (
    HOUR_BYTES as HOUR_BYTES,
    ReferencePicture as ReferencePicture,
    Usual as Usual,
)
