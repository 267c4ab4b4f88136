"""Why a device is not used, each reason by its name: what the kernel, the libraries and the node say themselves."""

import ctypes
import os
import platform
import re
import resource
import stat
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from rdma.cable import network_of, packets_of, shell
from rdma.member import RdmaMember, chain, members, until

from kvpool_agent.peer.rdma import nic as nics
from kvpool_agent.peer.rdma.words import RdmaError

CAPBSET_DROP, CAPABILITIES = 24, 41
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_IPC_LOCK = 1, 2, 14
VERBS = Path("/sys/class/infiniband_verbs")
LARGE = 512 << 20
LOCKABLE = 4 << 20  # half of what `RdmaMember` has, where nothing else is said


def reason(member: RdmaMember) -> str:
    return member.rdma.snapshot().reason


def limited(without: Collection[int]) -> None:
    """What an agent has whose container may lock little: in a child, before it becomes another program. without:
    capabilities that root has not there."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LOCKABLE, LOCKABLE))
    for capability in without:
        ctypes.CDLL(None).prctl(CAPBSET_DROP, capability)


def containers_without(monkeypatch: pytest.MonkeyPatch, capabilities: Collection[int]) -> None:
    """Devices' processes are in containers like that."""

    class Limited:
        """Of subprocess, what the device's process is started by."""

        DEVNULL, PIPE, run = subprocess.DEVNULL, subprocess.PIPE, subprocess.run
        Popen = partial(subprocess.Popen, preexec_fn=partial(limited, capabilities))

    monkeypatch.setattr(nics, "subprocess", Limited)


def test_a_limit_on_locked_memory_that_is_too_small_is_named_and_blocks_come_by_tcp(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    containers_without(monkeypatch, [CAP_IPC_LOCK])
    with members(RdmaMember("a", (), kind="TCP"), RdmaMember("b", devices[1:])) as (a, b):
        until("it was tried", lambda: reason(b) == "rdma_memlock")
        (device,) = b.rdma.snapshot().devices
        assert (device.name, device.state, device.reason) == (devices[1], "failed", "rdma_memlock")
        assert b.memory.size > 2 * LOCKABLE
        figures = f"the limit is {LOCKABLE} bytes, and {b.memory.size} were to be registered"
        assert b.rdma.snapshot().detail.startswith(figures)
        keys = chain("one", 4)
        a.store(keys)
        assert b.fetch(a, keys) == ""
        assert (b.holds(keys), b.moved("rdma_in"), b.counted("fallback")) == (4, (0, 0), {})


def test_for_root_with_ipc_lock_the_limit_does_not_hold(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {CAP_IPC_LOCK, CAP_DAC_READ_SEARCH}  # the latter since files of the host may be of another user
    containers_without(monkeypatch, set(range(CAPABILITIES)) - kept)
    with members(RdmaMember("a", devices[:1])) as (a,):
        a.until_ready()
        (nic,) = a.rdma._nics.values()
        assert nic._process is not None
        status = told(nic._process.pid)
        assert int(status["CapEff"][0], 16) == sum(1 << capability for capability in kept)
        assert locked(nic._process.pid) >= 2 * LOCKABLE


def test_a_large_arena_is_locked_whole_and_the_status_says_how_much_and_how_long_it_took(
    devices: tuple[str, str],
) -> None:
    with members(RdmaMember("a", devices[:1], LARGE // (4 << 20), slot_bytes=4 << 20)) as (a,):
        a.until_ready()
        until("it was looked at", lambda: a.rdma.snapshot().devices[0].registered_bytes)
        (device,), (nic,) = a.rdma.snapshot().devices, a.rdma._nics.values()
        assert device.registered_bytes == LARGE
        assert device.registration_seconds > 0
        assert nic._process is not None
        assert locked(nic._process.pid) >= LARGE


def locked(pid: int) -> int:
    """Bytes that the kernel keeps in memory for its devices."""
    return int(told(pid)["VmPin"][0]) << 10


def told(pid: int) -> dict[str, list[str]]:
    """What the kernel says of a process."""
    lines = [line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return {name: value.split() for name, value in lines}


def test_a_device_that_is_not_there_is_named_and_the_one_that_is_there_is_used(devices: tuple[str, str]) -> None:
    with members(RdmaMember("a", (devices[0], "absent"))) as (a,):
        a.until_ready()
        seen = a.rdma.snapshot()
        assert (seen.in_use, seen.reason) == ("RDMA", "")
        states = [(one.name, one.state, one.reason) for one in seen.devices]
        assert states == [(devices[0], "ready", ""), ("absent", "failed", "rdma_no_device")]
        assert a.counted("device") == {"device_rdma_no_device": 1}


def other_release(path: Path) -> Path:
    """A folder with the system's library as one of another release: its private symbols' version has another name."""
    (library,) = Path(f"/usr/lib/{platform.machine()}-linux-gnu").glob("libibverbs.so.1")
    content = library.read_bytes()
    found = re.search(rb"IBVERBS_PRIVATE_(\d)(\d)\0", content)
    assert found is not None
    digits = b"%02d" % ((int(found[1] + found[2]) + 1) % 100)
    (path / "libibverbs.so.1").write_bytes(content.replace(found[0], b"IBVERBS_PRIVATE_%b\0" % digits))
    return path


def test_libraries_of_different_releases_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other_release(tmp_path)))
    with pytest.raises(RdmaError, match=r"rdma_mismatch: .*IBVERBS_PRIVATE"):
        nics.look()


def test_an_image_without_pyverbs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [path for path in os.environ["PYTHONPATH"].split(":") if not (Path(path) / "pyverbs").exists()]
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    with pytest.raises(RdmaError, match=r"^rdma_no_pyverbs$"):
        nics.look()


def test_a_device_of_the_node_that_the_container_was_not_given_is_named(devices: tuple[str, str]) -> None:
    network_of(devices[0])
    given, taken = Path("/dev/infiniband"), Path("/dev/infiniband-taken")
    given.rename(taken)
    try:
        with pytest.raises(RdmaError, match=f"rdma_device_not_given: the node has {', '.join(devices)}"):
            nics.look()
    finally:
        taken.rename(given)
    assert nics.look() == list(devices)


@contextmanager
def closed(device: str) -> Iterator[None]:
    """Nobody is allowed to open it."""
    (found,) = (p for p in VERBS.iterdir() if (p / "ibdev").is_file() and (p / "ibdev").read_text().strip() == device)
    node = Path("/dev/infiniband") / found.name
    mode = stat.S_IMODE(node.stat().st_mode)
    node.chmod(0)
    try:
        yield
    finally:
        node.chmod(mode)


def test_a_device_that_the_container_sees_and_may_not_open_is_named(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network_of(devices[0])
    containers_without(monkeypatch, [CAP_DAC_OVERRIDE])
    with closed(devices[0]), members(RdmaMember("a", devices[:1])) as (a,):
        until("it was tried", lambda: reason(a) not in ("", "rdma_looking"))
        (device,) = a.rdma.snapshot().devices
        assert (device.name, device.state, device.reason) == (devices[0], "failed", "rdma_device_denied")
        assert (a.rdma.snapshot().in_use, reason(a)) == ("TCP", "rdma_device_denied")


@contextmanager
def without_address(network: str) -> Iterator[None]:
    found = re.search(r"inet (\S+)", shell("ip", "-4", "-o", "address", "show", "dev", network))
    assert found is not None
    shell("ip", "address", "del", found[1], "dev", network)
    try:
        yield
    finally:
        shell("ip", "address", "add", found[1], "dev", network)


@pytest.mark.parametrize(
    ("why", "changed"), [("rdma_mtu", partial(packets_of, size=700)), ("rdma_no_gid", without_address)]
)
def test_what_is_wrong_with_its_network_is_named_and_tried_again(
    devices: tuple[str, str], why: str, changed: Callable[[str], AbstractContextManager[None]]
) -> None:
    with ExitStack() as change:
        change.enter_context(changed(network_of(devices[0])))
        with members(RdmaMember("a", devices[:1])) as (a,):
            until("it was tried", lambda: reason(a) not in ("", "rdma_looking"))
            assert reason(a) == why
            change.close()
            a.until_ready()
            assert (a.rdma.snapshot().in_use, reason(a)) == ("RDMA", "")
