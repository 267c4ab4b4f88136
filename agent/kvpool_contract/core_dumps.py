"""No core dumps: the memory of agents holds keys, tokens and other people's prompts, that of the operator signing keys.

Two settings, since each leaves a gap. A limit of 0 keeps the kernel from writing a file, but is not asked where a node
pipes dumps to a program. Not being dumpable stops both, and keeps other processes of the same user from reading the
memory through /proc or ptrace; an exec undoes it, so each process says it for itself. Standard library alone: an
agent's supervisor begins with it.
"""

import ctypes
import logging
import os
import resource

log = logging.getLogger("kvpool")

PR_SET_DUMPABLE = 4


def forbid() -> None:
    """For this process from now on; the limit also for all that it starts. Where the kernel refuses, the process goes
    on: a dump is a danger, one that does not start is an outage."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        log.warning("core dumps can't be forbidden: %s", os.strerror(ctypes.get_errno()))
