"""Gives the memory of large requests and answers back when they have ended, without stopping."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import sysconfig

PERIOD = 2.0
"""Seconds between two returns of free memory; longer costs less time, and holds memory longer."""

M_TRIM_THRESHOLD, TOP = -1, 1 << 18
"""The number of an option of glibc, and the bytes that stay at the top of a thread's memory."""

RAW, MEMORY, OBJECTS = range(3)
"""Python's domains of memory, ``PyMemAllocatorDomain``."""


class _Allocator(ctypes.Structure):
    """The C structure ``PyMemAllocatorEx``."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "new", "zeroed", "resize", "free")]


def libc_that_trims() -> ctypes.CDLL | None:
    """The C library, if it is glibc, which can give free pages back; else None."""
    if sys.platform == "win32":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def small_objects_by_libc() -> bool:
    """Let libc allocate new small objects, like ``PYTHONMALLOC=malloc``; returns whether it does.

    Python's own allocator of small objects takes a megabyte at a time, and gives it back only when
    no object in it is alive. While a large body makes millions of objects, a few objects are made
    that stay, such as a connection. Then the megabytes stay as well. libc can give back every free
    page. Python's allocator still frees the objects that exist already, and passes every object
    that it does not know to libc, because larger objects were always libc's.
    """
    set_already = os.environ.get("PYTHONMALLOC") or sysconfig.get_config_var("Py_GIL_DISABLED")
    if set_already or libc_that_trims() is None:
        return False
    raw, objects = _Allocator(), _Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(RAW, ctypes.byref(raw))
    ctypes.pythonapi.PyMem_GetAllocator(OBJECTS, ctypes.byref(objects))
    if raw.context or objects.context:  # Somebody looks on, such as tracemalloc.
        return False
    objects.new, objects.zeroed = raw.new, raw.zeroed
    for domain in (MEMORY, OBJECTS):
        ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(objects))
    return True


def spare_what_exists() -> None:
    """Leave the objects that exist now out of all later searches for garbage.

    Such a search goes over every object, of which a server has hundreds of thousands when it has
    started. Nothing else runs meanwhile, and strangers can bring it on: each connection is garbage
    when it ends.
    """
    gc.collect()
    gc.freeze()


async def giving_back() -> None:
    """Give libc's free pages back again and again; returns at once where libc cannot do that."""
    libc = libc_that_trims()
    if libc is None:
        return
    # Trimming spares the top of each thread's memory, and a bound that was not set grows to 64 MB.
    libc.mallopt(M_TRIM_THRESHOLD, TOP)
    while True:
        await asyncio.sleep(PERIOD)
        await asyncio.to_thread(libc.malloc_trim, 0)
