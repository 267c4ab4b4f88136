"""All bytes of some TCP ports on the loopback interface, as an eavesdropper beside the wire has them."""

import ctypes
import socket
import struct
import threading
from collections.abc import Sequence

ETH_P_ALL = 0x0003
SO_ATTACH_FILTER = 26
SOL_PACKET, PACKET_STATISTICS = 263, 6
PACKET_OUTGOING = 4  # loopback shows each packet twice: going out and coming in
FRAME_BYTES = 1 << 18
BUFFER_BYTES = 1 << 28
LOOK_SECONDS = 0.1


def _filter(ports: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """A classic BPF program: TCP over IPv4 from or to one of the ports."""
    checks = 2 * (len(ports) + 1)
    program = [(0x28, 0, 0, 12), (0x15, 0, 3 + checks, 0x0800), (0x30, 0, 0, 23), (0x15, 0, 1 + checks, 6)]
    program.append((0xB1, 0, 0, 14))
    for offset in (14, 16):
        program.append((0x48, 0, 0, offset))
        for port in ports:
            left = checks - (len(program) - 5)  # instructions from the next one to the refusal
            program.append((0x15, left, 0, port))
    return [*program, (0x06, 0, 0, 0), (0x06, 0, 0, FRAME_BYTES)]


class Capture:
    """From entering to leaving the context; raises PermissionError where this process may not look."""

    def __init__(self, ports: Sequence[int]) -> None:
        # of no protocol until its filter is there: what came before that would be anybody's
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        program = b"".join(struct.pack("HBBI", *one) for one in _filter(ports))
        held = ctypes.create_string_buffer(program)
        size = len(program) // 8
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", size, ctypes.addressof(held)))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, BUFFER_BYTES)  # SO_RCVBUFFORCE
        self._socket.bind(("lo", ETH_P_ALL))
        self._socket.settimeout(LOOK_SECONDS)
        self._flows: dict[tuple[int, int], dict[int, bytes]] = {}
        self._planted: set[int] = set()  # ports that those bytes came from
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self.dropped = 0

    def __enter__(self) -> "Capture":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        seen = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self.dropped = struct.unpack("II", seen)[1]
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                frame, (_, _, kind, _, _) = self._socket.recvfrom(FRAME_BYTES)
            except TimeoutError:
                if self._ended.is_set():
                    return
                continue
            if kind == PACKET_OUTGOING:
                self._take(frame)

    def _take(self, frame: bytes) -> None:
        header = 14 + 4 * (frame[14] & 0xF)
        source, target, sequence = struct.unpack_from("!HHI", frame, header)
        end = 14 + struct.unpack_from("!H", frame, 16)[0] or len(frame)
        payload = frame[header + 4 * (frame[header + 12] >> 4) : end]
        if payload:
            self._flows.setdefault((source, target), {}).setdefault(sequence, payload)

    def plant(self, port: int, data: bytes) -> None:
        """Sends the bytes to this port as they are, so that a search for them has something to find."""
        with socket.create_connection(("127.0.0.1", port)) as sock:
            self._planted.add(sock.getsockname()[1])
            sock.sendall(data)

    def streams(self, port: int | None = None) -> list[bytes]:
        """What each direction of each connection, or of those from and to one port, has carried, in order; without
        what was planted."""
        flows = {ends: parts for ends, parts in self._flows.items() if self._planted.isdisjoint(ends)}
        return [self._joined(parts) for ends, parts in flows.items() if port in (None, *ends)]

    def planted(self) -> list[bytes]:
        """What was planted, as it was seen."""
        return [self._joined(parts) for (source, _), parts in self._flows.items() if source in self._planted]

    @staticmethod
    def _joined(parts: dict[int, bytes]) -> bytes:
        first, *_ = parts
        found = bytearray()
        for sequence in sorted(parts, key=lambda one: (one - first + 2**31) % 2**32):
            at = (sequence - first) % 2**32
            if at >= len(found):
                found += parts[sequence]
            else:
                found += parts[sequence][len(found) - at :]
        return bytes(found)
