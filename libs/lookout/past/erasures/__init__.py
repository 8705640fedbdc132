"""Erases what cameras showed, everywhere: requests and confirmations in `erasures.v1`, and a fence around
what Kafka still holds.

`Fence` says whether a time of a camera was erased; readers of Kafka ask it before they decode, replay or show
anything. `Eraser` carries out the topic's erasures in one process, step by step, and confirms them; if it is
killed at any step, it continues at the next start. `receipt_of` says what was erased, where and when, and
what remains until when.
"""

from lookout.past.erasures.eraser import Eraser as Eraser, Step as Step
from lookout.past.erasures.fence import Fence as Fence, LiveFence as LiveFence
from lookout.past.erasures.lineage import check_fence as check_fence
from lookout.past.erasures.receipt import (
    ReceiptError as ReceiptError,
    check_receipt as check_receipt,
    receipt_of as receipt_of,
    signed as signed,
)
from lookout.past.erasures.records import (
    ErasureLog as ErasureLog,
    erasure_fault as erasure_fault,
    new_erasure as new_erasure,
    read_log as read_log,
)
from lookout.past.erasures.service import join as join, live_fence as live_fence, read_fence as read_fence
