"""Erasing what cameras showed, everywhere: requests and confirmations in `erasures.v1`, and the fence around
what Kafka still holds.

`Fence` says whether a time of a camera was erased; readers of Kafka ask it before they decode, replay or
show. `Eraser` carries out in one process what the topic asks for, step by step, and confirms it; killed at
any step it continues. `receipt_of` says what was erased, where and when, and what remains until when.
"""

from lookout.erasures.eraser import Eraser, Step
from lookout.erasures.fence import Fence, LiveFence
from lookout.erasures.lineage import check_fence
from lookout.erasures.receipt import ReceiptError, check_receipt, receipt_of, signed
from lookout.erasures.records import (
    ErasureLog,
    erasure_fault,
    new_erasure,
    read_log,
)
from lookout.erasures.service import join, live_fence

__all__ = [
    "Eraser",
    "ErasureLog",
    "Fence",
    "LiveFence",
    "ReceiptError",
    "Step",
    "check_fence",
    "check_receipt",
    "erasure_fault",
    "join",
    "live_fence",
    "new_erasure",
    "read_log",
    "receipt_of",
    "signed",
]
