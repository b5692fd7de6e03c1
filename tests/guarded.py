"""Arrays at the very edge of what a process may read: for a process of its own, which reading further kills."""
import ctypes
import mmap
import sys

import numpy as np
import pytest

guards_memory = pytest.mark.skipif(sys.platform == 'win32', reason='this system protects memory in another way')


def at_an_end(array, front):
    """A copy with nothing that may be read before it, if `front`, else behind it."""
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page)
    area = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for edge in (0, pages + 1):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + edge * page), ctypes.c_size_t(page), 0) == 0
    place = page if front else (pages + 1) * page - array.nbytes
    there = np.frombuffer(area, array.dtype, array.size, place).reshape(array.shape)
    there[...] = array
    return there
