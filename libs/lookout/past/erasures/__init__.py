"""Erases ranges of cameras' footage everywhere, by requests and confirmations in `erasures.v1`.

`Eraser` carries out the topic's erasures in one process, step by step, and confirms them; a process that is
killed continues at its next start. Kafka cannot delete single records, so erased records are fenced off until
their retention ends: every reader asks `Fence` whether a camera's time range was erased before it decodes,
replays or shows anything. `receipt_of` states what was erased, where and when, and what remains until when.
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
