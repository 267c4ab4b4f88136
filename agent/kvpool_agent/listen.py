"""Listening sockets, on one address or on all of both families, since a pod may have IPv6 alone; and who comes."""

import socket
import time
from collections.abc import Callable, Iterator

ACCEPT_PAUSE_SECONDS = 0.1  # after a failed accept: without file descriptors every one fails at once


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A listening TCP socket. host: an address of either family; empty means all addresses. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def address_of(connection: socket.socket) -> str:
    """The address at the other end, without its port; empty where it is gone already."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""


def accepted(
    listening: socket.socket, closing: Callable[[], bool], failed: Callable[[], None]
) -> Iterator[socket.socket]:
    """The connections that come, until `closing`; an accept that fails is told to `failed`, and tried again ten times a
    second."""
    while not closing():
        try:
            connection, _ = listening.accept()
        except OSError:
            if not closing():
                failed()
                time.sleep(ACCEPT_PAUSE_SECONDS)
            continue
        yield connection
