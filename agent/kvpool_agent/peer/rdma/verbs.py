"""The one module that knows pyverbs, and what its releases call the same things differently.

What must be known of it: no call gives up the interpreter's lock, so none here waits. Work requests have no working
destructor, are freed by `close` alone, and a second one frees them twice: those here are made once, reused for ever and
never closed. A region keeps no reference to its memory. A request is given the address of the next one, nothing more.
pyverbs and the system's rdma-core must be of one release, or it can't be imported.
"""

import errno
import ipaddress
import os
import resource
import secrets
import socket
from collections.abc import Sequence
from typing import Any

from kvpool_agent.peer.lending import End
from kvpool_agent.peer.rdma.node import system_devices
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_contract.names import IPC_LOCK_VARIABLE

PORT = 1
LEAST_PATH_MTU = 1024  # below it a network device is set up for something else, and packets cost more than TCP's
CHAIN = 16  # reads that are handed over at a time, the last of which tells of all
DEPTH = 4 * CHAIN  # on their way on one queue pair
RETRIES = 6  # 7 means for ever
ACK_TIMEOUT = 14  # 4.096 µs · 2^14 = 67 ms for each try
COMPLETIONS = 4096
MOST_READS = 16  # that a queue pair takes and gives at a time


def _flat(module: Any) -> dict[str, int]:
    """Names of constants, which newer releases keep in classes."""
    found: dict[str, int] = {}
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, int):
            found |= {key: int(one) for key, one in getattr(value, "__members__", {}).items()}
        elif isinstance(value, int):
            found[name] = int(value)
    return found


def _load() -> dict[str, int]:
    """pyverbs' constants. Raises RdmaError where it can't be used."""
    try:
        import pyverbs
    except ImportError:
        raise RdmaError("rdma_no_pyverbs") from None
    try:
        # a library of another release shows here alone; a second import of its like fails in other ways
        import pyverbs.cq
        import pyverbs.device
        import pyverbs.mr
        import pyverbs.pd
        import pyverbs.qp
        import pyverbs.wr  # noqa: F401

        try:
            import pyverbs.libibverbs_enums as enums
        except ImportError:
            import pyverbs.enums as enums
    except Exception as error:  # noqa: BLE001 - whatever a mixture of releases does
        raise RdmaError("rdma_mismatch", str(error)) from None
    return _flat(enums)


def devices() -> list[str]:
    """Names of the devices that this container can open. Raises RdmaError with the reason where there is none."""
    _load()
    from pyverbs.device import get_device_list
    from pyverbs.pyverbs_error import PyverbsRDMAError

    there = system_devices()
    try:
        found = [device.name for device in get_device_list()]
    except PyverbsRDMAError:
        raise RdmaError("rdma_no_device", "the node's kernel has no RDMA") from None
    if not found:
        if there:
            raise RdmaError("rdma_device_not_given", f"the node has {', '.join(there)}")
        raise RdmaError("rdma_no_device", "the node has no RDMA device")
    return [name.decode() if isinstance(name, bytes) else name for name in found]


def of_error(error: Exception, length: int = 0) -> RdmaError:
    """What an error of a verb means. Any of them may pin memory, so none but the limit on that gives ENOMEM; where the
    pool wanted the agent to be above that limit, why it is not is what matters. length: bytes that were to be
    registered."""
    code = getattr(error, "error_code", 0)
    if code == errno.ENOMEM:
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        told = "there is no limit" if limit == resource.RLIM_INFINITY else f"the limit is {limit} bytes"
        wanted = f", and {length} were to be registered" if length else ""
        return RdmaError(os.environ.get(IPC_LOCK_VARIABLE) or "rdma_memlock", f"{told}{wanted}: {error}")
    return RdmaError("rdma_failed", str(error))


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is an address of this network namespace: one that a socket can have."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class Device:
    """A device, opened. Raises RdmaError; every method may."""

    def __init__(self, name: str) -> None:
        self._constants = _load()
        from pyverbs.cq import CQ, CompChannel
        from pyverbs.device import Context
        from pyverbs.pyverbs_error import PyverbsError
        from pyverbs.wr import SGE, SendWR

        self.errors: type[Exception] = PyverbsError
        try:
            self._context = Context(name=name)
        except PyverbsError as error:
            raise RdmaError("rdma_device_denied", str(error)) from None
        self.check_port()
        self.gid_index, self.gid = self._own_gid()
        try:
            limits = self._context.query_device()
            self.reads = max(1, min(MOST_READS, limits.max_qp_rd_atom))
            before = _event_files()
            channel = CompChannel(self._context)
            self.events: int = channel.fd if hasattr(channel, "fd") else (_event_files() - before).pop()
            os.set_blocking(self.events, False)
            self._channel = channel
            self._queue = CQ(self._context, min(COMPLETIONS, limits.max_cqe), None, channel, 0)
        except PyverbsError as error:
            raise of_error(error) from None
        # the chain is tied together once, and used from its middle for fewer requests
        self._elements = [SGE(0, 0, 0) for _ in range(CHAIN)]
        self._chain: list[Any] = []
        for element in self._elements:
            request = SendWR(opcode=self._constants["IBV_WR_LOCAL_INV"], send_flags=0)  # the one kind without elements
            request.opcode, request.num_sge = self._constants["IBV_WR_RDMA_READ"], 1
            request.sg_list = element
            if self._chain:
                self._chain[-1].next_wr = request
            self._chain.append(request)
        self._chain[-1].send_flags = self._constants["IBV_SEND_SIGNALED"]

    def _port(self) -> Any:
        try:
            return self._context.query_port(PORT)
        except self.errors as error:
            raise of_error(error) from None

    @property
    def mtu(self) -> int:
        """Of the port, in bytes."""
        return 128 << int(self._port().active_mtu)

    def check_port(self) -> None:
        """Raises RdmaError where the port can't be used now."""
        port = self._port()
        if port.link_layer == self._constants["IBV_LINK_LAYER_INFINIBAND"]:
            raise RdmaError("rdma_no_gid", "the port's link is InfiniBand, and this version knows Ethernet alone")
        if port.state != self._constants["IBV_PORT_ACTIVE"]:
            raise RdmaError("rdma_port_down")
        if 128 << int(port.active_mtu) < LEAST_PATH_MTU:
            raise RdmaError("rdma_mtu", f"the port's MTU is {128 << int(port.active_mtu)} bytes")

    def _own_gid(self) -> tuple[int, bytes]:
        """(index, GID) of RoCE version 2 with an address of this pod's: indices differ from pod to pod. Addresses of
        version 4 first, since both ends must agree."""
        seen = []
        for entry in self._context.query_gid_table(256):
            address = ipaddress.IPv6Address(entry.gid_str())
            if entry.gid_type != 2 or address.is_link_local:  # IBV_GID_TYPE_ROCE_V2, as entries say it
                continue
            own = address.ipv4_mapped or address
            seen.append((own.version, entry.gid_index, address, own))
        for _, index, address, own in sorted(seen, key=lambda one: one[:2]):
            if _is_own(own):
                return index, address.packed
        others = ", ".join(str(own) for *_, own in seen) or "none"
        raise RdmaError("rdma_no_gid", f"addresses in the device's table: {others}")

    # -- memory --------------------------------------------------------------------------------------

    def region(self, address: int, length: int) -> tuple[Any, Any]:
        """(protection domain, region) for these bytes of this process: a queue pair reads in its own domain alone."""
        from pyverbs.mr import MR
        from pyverbs.pd import PD

        access = self._constants["IBV_ACCESS_LOCAL_WRITE"] | self._constants["IBV_ACCESS_REMOTE_READ"]
        try:
            domain = PD(self._context)
            return domain, MR(domain, length, access, address=address)
        except self.errors as error:
            raise of_error(error, length) from None

    # -- queue pairs ---------------------------------------------------------------------------------

    def queue_pair(self, domain: Any) -> tuple[Any, End]:
        from pyverbs.qp import QP, QPCap, QPInitAttr

        capacity = QPCap(max_send_wr=DEPTH + CHAIN, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        kind = QPInitAttr(
            qp_type=self._constants["IBV_QPT_RC"], scq=self._queue, rcq=self._queue, cap=capacity, sq_sig_all=0
        )
        try:
            pair = QP(domain, kind)
        except self.errors as error:
            raise of_error(error) from None
        return pair, End(pair.qp_num, secrets.randbits(24), self.gid, self.mtu, self.reads)

    def connect(self, pair: Any, own: End, other: End) -> None:
        """The smaller MTU holds: neither end may send what the other's port can't take."""
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        attributes = QPAttr(port_num=PORT)
        attributes.qp_access_flags = self._constants["IBV_ACCESS_REMOTE_READ"]
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = other.queue_pair, other.packet, own.packet
        attributes.path_mtu = (min(own.mtu, other.mtu) // 256).bit_length()
        attributes.max_rd_atomic, attributes.max_dest_rd_atomic = min(own.reads, other.reads), own.reads
        attributes.min_rnr_timer, attributes.rnr_retry = 12, 6
        attributes.timeout, attributes.retry_cnt = ACK_TIMEOUT, RETRIES
        target = GID(ipaddress.IPv6Address(other.gid).exploded)
        route = GlobalRoute(dgid=target, sgid_index=self.gid_index, hop_limit=64)
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
        try:
            pair.to_rts(attributes)
        except self.errors as error:
            raise of_error(error) from None

    def post(self, pair: Any, number: int, key: int, local_key: int, parts: Sequence[tuple[int, int, int]]) -> None:
        """Reads up to CHAIN parts (address there, address here, bytes); the last one completes with this number."""
        chain = self._chain[CHAIN - len(parts) :]
        for request, element, part in zip(chain, self._elements[CHAIN - len(parts) :], parts, strict=True):
            element.addr, element.length, element.lkey = part[1], part[2], local_key
            request.set_wr_rdma(key, part[0])
        chain[-1].wr_id = number
        try:
            pair.post_send(chain[0])
        except self.errors as error:
            raise of_error(error) from None

    # -- completions ---------------------------------------------------------------------------------

    def completed(self) -> list[tuple[int, int]]:
        """(number, status) of requests that have ended; status 0 is success."""
        _, found = self._queue.poll(CHAIN)
        return [(one.wr_id, one.status) for one in found]

    def arm(self) -> None:
        """The next completion makes `events` readable."""
        self._queue.req_notify()

    def disarm(self) -> None:
        """Takes what has made `events` readable."""
        self._channel.get_cq_event(self._queue)
        self._queue.ack_events(1)


def _event_files() -> set[int]:
    """Descriptors of completion channels: older releases don't tell them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115
                found.add(int(name))
        except OSError:
            continue
    return found
