"""An agent listens on one address, or on all addresses of both families."""

import socket

import pytest

from kvpool_agent.listen import listen


def reached(family: int, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        return client.connect_ex((address, port)) == 0


def test_no_address_means_all_of_both_families() -> None:
    with listen("", 0, 1) as server:
        port = server.getsockname()[1]
        assert reached(socket.AF_INET, "127.0.0.1", port)
        if socket.has_dualstack_ipv6():
            assert reached(socket.AF_INET6, "::1", port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_means_this_one(address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(address, 0, 1) as server:
        assert server.getsockname()[0] == address
