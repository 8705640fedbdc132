"""The largest that anything on the wire may be. Declared here once.

Entries (command line, Kubernetes resources, controller) and readers check the same numbers; the CRDs' bounds
are compared with them by `charts/derive.py`. Raising one costs what its comment names.
"""

from __future__ import annotations

from typing import Final

#: bytes of a camera's or a watch's id in UTF-8: keys of records, parts of tensor ids
ID_BYTES: Final = 200
#: characters of a tenant's name, as those of a Kubernetes label
TENANT_CHARS: Final = 63
#: camera ids or patterns of one watch
WATCH_CAMERAS: Final = 1000
#: polygons of a watch, corners of a polygon, characters of its name
ZONES: Final = 20
ZONE_POINTS: Final = 100
ZONE_NAME: Final = 100
#: weekly spans of a watch, characters of an IANA time zone's name
SCHEDULE_ENTRIES: Final = 100
TIME_ZONE: Final = 60
#: the least threshold that can be followed: on the wire 0 stands for the default
LEAST_THRESHOLD: Final = 0.001
#: answers that a rule may look back on; they are the bits of one 64-bit number in the checkpoint
LAST_ANSWERS: Final = 64
#: longest cooldown, 31 days
COOLDOWN_S: Final = 31 * 86_400
#: bytes of a watch as JSON; what the limits above allow is below it
WATCH_BYTES: Final = 640 * 1024
#: watches of one camera: verdicts of one window, and incidents that may be open at a time
CAMERA_WATCHES: Final = 256
#: watches of an installation: each prefill instance holds them in memory, with up to 16 versions
ALL_WATCHES: Final = 10_000
#: samples of a stride block, stride blocks of a window: a hole in a stream is filled with so many empty
#: blocks
BLOCK_SAMPLES: Final = 1024
WINDOW_BLOCKS: Final = 256
#: rows or columns of a grid of patches or merge groups, and cells of it
GRID_SIDE: Final = 1024
GRID_CELLS: Final = 65_536
#: characters of a reason or a detail that is written into a record
REASON: Final = 1000
#: milliseconds by which an epoch may lie ahead of the Kafka time of the record that names it
EPOCH_AHEAD_MS: Final = 86_400_000
#: bytes of a recording job's id: keys of parts are it and a number
JOB_BYTES: Final = 100
#: URIs, and questions, of a recording job; characters of a URI
JOB_URIS: Final = 256
JOB_QUESTIONS: Final = 32
URI_CHARS: Final = 2048
#: parts of a job, and answers (parts times questions): all of them are in the record of its answers
JOB_PARTS: Final = 4096
JOB_ANSWERS: Final = 32_768
#: samples of a part at most; all of them are in memory as key-value pairs
PART_SAMPLES: Final = 65_536
#: recordings of a job once its folders are listed
JOB_RECORDINGS: Final = 1000
#: gaps of a recording or part that are named
RECORDING_GAPS: Final = 256
#: incidents of a back-test that its answers name
JOB_INCIDENTS: Final = 5000
#: labels of a back-test; all of them are in its request
JOB_LABELS: Final = 1000
#: longest a job may run: what Kafka keeps of its parts and outcomes
JOB_S: Final = 7 * 86_400
#: tokens of a description
DESCRIPTION_TOKENS: Final = 512
#: erasures of an installation: each service holds their ranges in memory
ERASURES: Final = 10_000
#: longest range in the future (of a clock that is ahead) that is erased: 366 days
ERASED_AHEAD_US: Final = 366 * 86_400 * 10**6
#: characters of the name of who does something: a token's, or a subject of OpenID Connect
ACTOR_CHARS: Final = 200
#: characters of a note on an incident
NOTE_CHARS: Final = 4000
#: characters of an idempotency key
REQUEST_KEY: Final = 128
#: camera patterns, or tenants, of a token
TOKEN_SCOPES: Final = 256
#: notifications of an installation: each has a thread in the service that delivers
NOTIFICATIONS: Final = 100
#: events of one incident that some notification was not told yet: all of them are in one record of state
WAITING_EVENTS: Final = 256
