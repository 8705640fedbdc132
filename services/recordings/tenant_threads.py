"""Threads that tenants share in such a way that slow hosts delay only their own tenant's work."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")
THREADS: Final = 16
#: maximum number of threads per tenant, so that only many slow tenants together can occupy all threads
THREADS_OF_A_TENANT: Final = 2
#: maximum number of waiting work items per tenant; further items are rejected
WAITING_OF_A_TENANT: Final = 64


class TenantThreads(Generic[T]):
    """Runs tenants' work items; tenants take turns. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tenants")
        self._waiting: OrderedDict[str, deque[tuple[Future[T], Callable[[], T]]]] = OrderedDict()
        self._running: Counter[str] = Counter()

    def is_idle(self, tenant: str) -> bool:
        """Return whether no work of a tenant is running or waiting."""
        with self._lock:
            return not self._running[tenant] and tenant not in self._waiting

    def has_room(self, tenant: str) -> bool:
        """Return whether more work of a tenant is accepted."""
        with self._lock:
            return len(self._waiting.get(tenant, ())) < WAITING_OF_A_TENANT

    def submit(self, tenant: str, work: Callable[[], T]) -> Future[T] | None:
        """Queue work to run when its tenant's turn comes; return its future, or None if too much of the
        tenant's work is already waiting.
        """
        with self._lock:
            waiting = self._waiting.setdefault(tenant, deque())
            if len(waiting) >= WAITING_OF_A_TENANT:
                return None
            future: Future[T] = Future()
            waiting.append((future, work))
            self._begin()
        return future

    def close(self) -> None:
        """Start no further work. Does not wait for running work."""
        with self._lock:
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Give free threads to waiting work; the tenant whose last turn was longest ago comes first."""
        for tenant in list(self._waiting):
            if self._running.total() >= THREADS:
                return
            waiting = self._waiting[tenant]
            while waiting and self._running[tenant] < THREADS_OF_A_TENANT:
                future, work = waiting.popleft()
                if future.set_running_or_notify_cancel():
                    self._running[tenant] += 1
                    self._waiting.move_to_end(tenant)
                    self._pool.submit(self._run, tenant, future, work)
                    break
            if not waiting:
                del self._waiting[tenant]

    def _run(self, tenant: str, future: Future[T], work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:
            self._free(tenant)
            future.set_exception(error)
        else:
            self._free(tenant)
            future.set_result(result)

    def _free(self, tenant: str) -> None:
        """Free a tenant's thread. Called before the result is visible, so that whoever sees the result finds
        the thread free.
        """
        with self._lock:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._begin()
