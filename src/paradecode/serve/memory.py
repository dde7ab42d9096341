"""Return the memory of large requests and answers to the system while the server runs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import sysconfig

PERIOD = 2.0
"""Seconds between two returns of free memory.

A longer period costs less time and holds memory longer.
"""

M_TRIM_THRESHOLD, TOP = -1, 1 << 18
"""Number of a glibc option, and the free bytes that glibc keeps at the top of a thread's memory."""

RAW, MEMORY, OBJECTS = range(3)
"""Python's memory domains, as in ``PyMemAllocatorDomain``."""


class _Allocator(ctypes.Structure):
    """The C structure ``PyMemAllocatorEx``."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "new", "zeroed", "resize", "free")]


def libc_that_trims() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, which can return free pages to the system, else None."""
    if sys.platform == "win32":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def small_objects_by_libc() -> bool:
    """Let libc allocate new small objects, like ``PYTHONMALLOC=malloc``. Return whether it does.

    Python's own allocator takes a megabyte at a time, and returns it only when no object in it is
    alive. While a large body makes millions of objects, a few long-lived ones are made as well,
    such as a connection, and keep those megabytes. libc can return every free page. Python's
    allocator still frees the objects that exist already. It passes an object that it does not know
    to libc, which has always allocated the larger objects.
    """
    set_already = os.environ.get("PYTHONMALLOC") or sysconfig.get_config_var("Py_GIL_DISABLED")
    if set_already or libc_that_trims() is None:
        return False
    raw, objects = _Allocator(), _Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(RAW, ctypes.byref(raw))
    ctypes.pythonapi.PyMem_GetAllocator(OBJECTS, ctypes.byref(objects))
    if raw.context or objects.context:  # A hook such as tracemalloc is installed.
        return False
    objects.new, objects.zeroed = raw.new, raw.zeroed
    for domain in (MEMORY, OBJECTS):
        ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(objects))
    return True


def spare_what_exists() -> None:
    """Leave the objects that exist now out of all later garbage collections.

    A collection visits every object, and a started server has hundreds of thousands. Nothing else
    runs meanwhile, and strangers can cause collections, because each connection is garbage when it
    ends.
    """
    gc.collect()
    gc.freeze()


async def giving_back() -> None:
    """Return libc's free pages to the system every ``PERIOD`` seconds.

    If libc cannot do that, the coroutine returns at once.
    """
    libc = libc_that_trims()
    if libc is None:
        return
    # Trimming keeps the top of each thread's memory. If its size is not set, it grows to 64 MB.
    libc.mallopt(M_TRIM_THRESHOLD, TOP)
    while True:
        await asyncio.sleep(PERIOD)
        await asyncio.to_thread(libc.malloc_trim, 0)
