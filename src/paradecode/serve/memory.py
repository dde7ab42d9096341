"""Give the memory of large requests and answers back to the system when they have ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import sysconfig

PERIOD = 2.0
"""Seconds between two looks at what is free."""

M_TRIM_THRESHOLD, TOP = -1, 1 << 18
"""An option of glibc, and the bytes that a thread keeps at the top of its memory."""

RAW, MEMORY, OBJECTS = range(3)
"""Python's domains of memory, ``PyMemAllocatorDomain``."""


class _Allocator(ctypes.Structure):
    """``PyMemAllocatorEx``"""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "new", "zeroed", "resize", "free")]


def libc_that_trims() -> ctypes.CDLL | None:
    """The C library, if it can be asked to give free pages back: glibc."""
    if sys.platform == "win32":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def small_objects_by_libc() -> bool:
    """Have libc allocate what is new, as ``PYTHONMALLOC=malloc`` does; whether that was possible.

    Python's own allocator of small objects takes a megabyte at a time, and gives it back when not
    one object in it lives. Beside the millions of objects of a large body small ones are made that
    stay, such as a connection, so the megabytes stay, too: jump by jump. libc can give back every
    free page. Objects that exist are still freed by Python's allocator, which hands on what it does
    not know, because all objects of more than 512 bytes were libc's before.
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
