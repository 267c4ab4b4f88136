"""What is done to the network between two devices that are made of software: packets are lost, late or stopped."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEVICES = Path("/sys/class/infiniband")
SLOW = ("rate", "4mbit")  # a megabyte takes two seconds


def network_of(device: str) -> str:
    """The network device below it; skips the test where that is hardware, on whose network others may be."""
    below = DEVICES / device / "parent"  # of devices made of software alone
    if not below.exists():
        pytest.skip(f"{device} is hardware: its network is not disturbed")
    return below.read_text().strip()


def shell(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@contextmanager
def disturbed(device: str, *how: str) -> Iterator[str]:
    """What leaves by the device is treated so, in the words of tc's netem; gives the network device."""
    network = network_of(device)
    shell("tc", "qdisc", "add", "dev", network, "root", "netem", "limit", "100000", *how)
    try:
        yield network
    finally:
        shell("tc", "qdisc", "del", "dev", network, "root")


def lost(network: str) -> int:
    """Packets that were lost since its disturbance began."""
    (found,) = json.loads(shell("tc", "-s", "-j", "qdisc", "show", "dev", network, "root"))
    return int(found["drops"])


def received(device: str) -> int:
    """Bytes, ever."""
    return int((Path("/sys/class/net") / network_of(device) / "statistics/rx_bytes").read_text())


@contextmanager
def link_down(device: str) -> Iterator[None]:
    network = network_of(device)
    shell("ip", "link", "set", network, "down")
    try:
        yield
    finally:
        shell("ip", "link", "set", network, "up")


@contextmanager
def packets_of(network: str, size: int) -> Iterator[None]:
    """The network device's MTU, in bytes."""
    shell("ip", "link", "set", network, "mtu", str(size))
    try:
        yield
    finally:
        shell("ip", "link", "set", network, "mtu", "9000")


def objects(kind: str) -> list[dict[str, Any]]:
    """Of all devices, as the kernel counts them: `qp`, `mr`, `pd`, `cq` of programs, not the driver's own."""
    return [one for one in json.loads(shell("rdma", "-j", "resource", "show", kind)) if one.get("pid")]
