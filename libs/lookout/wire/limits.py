"""Upper limits of everything on the wire, declared once.

Writers (command line, Kubernetes resources, controller) and readers check the same numbers;
`charts/derive.py` compares the CRDs' bounds with them. The comment on a limit says what raising it would
cost.
"""

from __future__ import annotations

from typing import Final

#: bytes of a camera's or a watch's id in UTF-8: ids are keys of records and parts of tensor ids
ID_BYTES: Final = 200
#: characters of a tenant's name, as in a Kubernetes label
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
#: smallest threshold of a rule: in messages, 0 stands for the default
LEAST_THRESHOLD: Final = 0.001
#: answers on which a rule may look back: they are the bits of one 64-bit number in the checkpoint
LAST_ANSWERS: Final = 64
#: longest cooldown in seconds: 31 days
COOLDOWN_S: Final = 31 * 86_400
#: bytes of a watch as JSON; no watch within the limits above is larger
WATCH_BYTES: Final = 640 * 1024
#: watches of one camera, and thus verdicts of one window and open incidents at a time
CAMERA_WATCHES: Final = 256
#: watches of an installation: each prefill instance keeps them in memory, with up to 16 versions
ALL_WATCHES: Final = 10_000
#: samples of a stride block, and stride blocks of a window. A gap in a stream is filled with up to a window
#: of empty blocks
BLOCK_SAMPLES: Final = 1024
WINDOW_BLOCKS: Final = 256
#: rows or columns of a grid of patches or merge groups, and its cells
GRID_SIDE: Final = 1024
GRID_CELLS: Final = 65_536
#: characters of a reason or detail in a record
REASON: Final = 1000
#: milliseconds by which an epoch may be ahead of the Kafka time of its record
EPOCH_AHEAD_MS: Final = 86_400_000
#: bytes of a recording job's id: the keys of its parts are the id and a number
JOB_BYTES: Final = 100
#: URIs and questions of a recording job; characters of a URI
JOB_URIS: Final = 256
JOB_QUESTIONS: Final = 32
URI_CHARS: Final = 2048
#: parts of a job, and answers (parts times questions): all of them are in the record of its answers
JOB_PARTS: Final = 4096
JOB_ANSWERS: Final = 32_768
#: samples of a part; the KV of all of them is in memory
PART_SAMPLES: Final = 65_536
#: recordings of a job, after its folders are listed
JOB_RECORDINGS: Final = 1000
#: gaps that the outcome of a recording or part lists
RECORDING_GAPS: Final = 256
#: incidents that the answer of a back-test lists
JOB_INCIDENTS: Final = 5000
#: labels of a back-test; all of them are in its request
JOB_LABELS: Final = 1000
#: seconds that a job may run: Kafka keeps its parts for this time
JOB_S: Final = 7 * 86_400
#: tokens of a description
DESCRIPTION_TOKENS: Final = 512
#: erasures of an installation: each service keeps their ranges in memory
ERASURES: Final = 10_000
#: longest range in the future that can be erased (for a clock that is ahead): 366 days
ERASED_AHEAD_US: Final = 366 * 86_400 * 10**6
#: characters of an actor's name: a token's name or an OpenID Connect subject
ACTOR_CHARS: Final = 200
#: characters of a note on an incident
NOTE_CHARS: Final = 4000
#: characters of an idempotency key
REQUEST_KEY: Final = 128
#: camera patterns or tenants of a token
TOKEN_SCOPES: Final = 256
#: notifications of an installation: each has a thread in the notify service
NOTIFICATIONS: Final = 100
#: events of one incident that wait for a notification: all of them are in one checkpoint record
WAITING_EVENTS: Final = 256
