"""File descriptors: a worker takes as many as its container may have.

Container runtimes begin with few (often 1,024), for programs that could not use more; a member of a large pool has a
few connections with each of the others.
"""

import contextlib
import resource


def take_all() -> None:
    """Raises this process's limit to what it may be; where the kernel refuses, it stays as it was."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
