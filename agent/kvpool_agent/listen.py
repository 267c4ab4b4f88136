"""Listening sockets: on one address, or on all of both families, since a pod may have IPv6 alone."""

import socket


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A listening TCP socket. host: an address of either family; empty means all addresses. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)
