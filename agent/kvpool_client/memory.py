"""The other side's memory, mapped read-only from a descriptor, and the one copy that a block costs on each side.

Neither side writes memory that the other allocates: the mapping has no write permission, so a bug here is a fault
of this process and never a changed byte over there. `ctypes.memmove` drops the GIL, a slice copy would not.
"""

import ctypes
import mmap
import os
import threading

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class ReadOnlyMapping:
    """`size` bytes of another process, at `address`. Python's own mmap gives no address of a read-only map."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Raises OSError when the descriptor holds fewer than `size` bytes or can't be mapped."""
        if os.fstat(descriptor).st_size < size or size <= 0:
            raise OSError(f"mapping of {size} bytes: the descriptor holds {os.fstat(descriptor).st_size}")
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address is None or address == _FAILED:
            raise OSError(ctypes.get_errno(), f"mmap of {size} bytes failed: {os.strerror(ctypes.get_errno())}")
        self.address: int = address
        self.size = size
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def retain(self) -> bool:
        """Keeps the mapping in place until `release`; False when it is closed already."""
        with self._lock:
            if self._closed:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            self._unmap_if_unused()

    def close(self) -> None:
        """Unmaps, once nobody retains it: a copy that runs now must not lose the ground under it."""
        with self._lock:
            self._closed = True
            self._unmap_if_unused()

    def _unmap_if_unused(self) -> None:
        if self._closed and not self._users and self.size:
            _libc.munmap(self.address, self.size)
            self.size = 0


def address_of(view: memoryview) -> int:
    """Address of the first byte of a writable buffer."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def copy(target: int, source: int, length: int) -> None:
    """Copies `length` bytes between addresses that the caller knows to be mapped."""
    ctypes.memmove(target, source, length)


def reopen_read_only(descriptor: int) -> int:
    """A new descriptor of the same file that can't be mapped writable, fit to be given away."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
