"""The engine port's frames: any split of the bytes gives the same frames, and nothing else gets through."""

import contextlib
import json
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpool_client import wire

FRAMES = [({"verb": "a", "n": 1}, b""), ({"verb": "b", "text": "ü"}, b"tail"), ({}, bytes(range(256)) * 10)]
STREAM = b"".join(wire.encode(header, tail) for header, tail in FRAMES)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def pair() -> Iterator[tuple[wire.Channel, wire.Channel]]:
    left, right = (wire.Channel(sock) for sock in socket.socketpair())
    for channel in (left, right):
        channel.settimeout(5.0)
    yield left, right
    left.close()
    right.close()


def test_a_connection_that_is_not_made_keeps_no_descriptor_and_one_that_is_carries_frames(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError) as raised:  # which keeps the socket from being collected
        wire.Channel.dial(str(tmp_path / "nobody"), 5.0)
    assert raised.tb is not None and open_descriptors() == before
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "somebody"))
        listening.listen(1)
        with contextlib.closing(wire.Channel.dial(str(tmp_path / "somebody"), 0.05)) as channel:
            channel.send({"verb": "a"}, b"tail")
            with contextlib.closing(wire.Channel(listening.accept()[0])) as other:
                frame = other.receive()
                assert (frame.header, frame.tail) == ({"verb": "a"}, b"tail")
            with pytest.raises(wire.WireError):
                channel.receive()
        silent = wire.Channel.dial(str(tmp_path / "somebody"), 0.05)
        with contextlib.closing(silent), pytest.raises(TimeoutError):
            silent.receive()
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(STREAM)])
def test_any_split_of_the_stream_gives_the_same_frames(size: int) -> None:
    decoder = wire.Decoder()
    found = [f for i in range(0, len(STREAM), size) for f in decoder.feed(STREAM[i : i + size])]
    assert [(f.header, f.tail) for f in found] == FRAMES


def test_random_splits_give_the_same_frames() -> None:
    draw = random.Random(7)
    for _ in range(50):
        decoder, found, rest = wire.Decoder(), [], STREAM
        while rest:
            cut = draw.randint(1, 100)
            found += decoder.feed(rest[:cut])
            rest = rest[cut:]
        assert [(f.header, f.tail) for f in found] == FRAMES


@pytest.mark.parametrize(
    "data",
    [
        wire._LENGTHS.pack(wire.MAX_HEADER + 1, 0),
        wire._LENGTHS.pack(2, wire.MAX_TAIL + 1),
        wire._LENGTHS.pack(3, 0) + b"{x}",
        wire._LENGTHS.pack(2, 0) + b"[]",
        wire._LENGTHS.pack(4, 0) + b"null",
        wire._LENGTHS.pack(2, 0) + b"\xff\xfe",
        wire._LENGTHS.pack(0, 0),
        wire._LENGTHS.pack(100_000, 0) + b"[" * 100_000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["header-length", "tail-length", "bad-json", "list", "null", "no-utf8", "empty", "deep", "http"],
)
def test_bytes_that_are_no_frame_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(data)


def test_lengths_over_the_limits_are_refused_before_their_bytes_have_come() -> None:
    with pytest.raises(wire.WireError, match="over the limits"):
        wire.Decoder().feed(wire._LENGTHS.pack(0xFFFFFFFF, 0xFFFFFFFF))


def test_a_frame_over_the_limits_is_not_sent() -> None:
    with pytest.raises(wire.WireError, match="too large"):
        wire.encode({"verb": "x" * wire.MAX_HEADER})


def test_a_tail_that_is_no_whole_number_of_items_is_refused() -> None:
    assert wire.split(b"aabbcc", 2) == [b"aa", b"bb", b"cc"]
    assert wire.split(b"", 2) == []
    for tail, size in ((b"aab", 2), (b"aa", 0), (b"aa", -1)):
        with pytest.raises(wire.WireError):
            wire.split(tail, size)


def test_descriptors_come_with_the_frame_they_were_sent_with(pair: tuple[wire.Channel, wire.Channel]) -> None:
    left, right = pair
    reading, writing = os.pipe()
    left.send({"verb": "first"})
    assert right.receive().descriptors == ()
    left.send({"verb": "second"}, b"t", descriptors=[reading])
    left.send({"verb": "third"})
    second, third = right.receive(), right.receive()
    assert (second.verb, second.tail, third.verb, third.descriptors) == ("second", b"t", "third", ())
    (received,) = second.descriptors
    os.write(writing, b"through")
    assert os.read(received, 7) == b"through"
    for descriptor in (reading, writing, received):
        os.close(descriptor)


def test_descriptors_that_find_no_place_are_a_wire_error_and_not_a_frame_without_them(
    pair: tuple[wire.Channel, wire.Channel],
) -> None:
    left, right = pair
    left.send({"verb": "attach"}, descriptors=[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # all below are open
    try:
        with pytest.raises(wire.WireError, match="too many files open"):
            right.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_frame_brings_descriptors_without_end(pair: tuple[wire.Channel, wire.Channel]) -> None:
    left, right = pair
    before = open_descriptors()
    for byte in wire.encode({"verb": "attach"}, b"tail")[:4]:  # two with each byte of a frame that has not ended
        socket.send_fds(left._socket, [bytes([byte])], [0, 0])
    with pytest.raises(wire.WireError, match="more than 4 descriptors"):
        right.receive()
    right.close()
    assert open_descriptors() == before - 1


def test_a_large_frame_with_descriptors_arrives_whole(pair: tuple[wire.Channel, wire.Channel]) -> None:
    left, right = pair
    tail = os.urandom(3 << 20)
    null = os.open(os.devnull, os.O_RDONLY)
    sender = threading.Thread(target=left.send, args=({"verb": "big"}, tail, [null]))
    sender.start()
    frame = right.receive()
    sender.join()
    assert frame.tail == tail
    os.close(null)
    os.close(frame.descriptors[0])


def test_descriptors_that_nobody_took_are_closed_with_the_channel() -> None:
    left, right = (wire.Channel(sock) for sock in socket.socketpair())
    null = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    left._socket.sendmsg(
        [wire.encode({"verb": "x"})[:5]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, null.to_bytes(4, "little"))]
    )
    right.settimeout(0.01)
    with pytest.raises(TimeoutError):
        right.receive()
    assert open_descriptors() == before + 1
    right.close()
    assert open_descriptors() == before - 1
    left.close()
    os.close(null)


def test_a_frame_sent_whole_is_no_error_when_the_peer_has_answered_and_closed_meanwhile() -> None:
    left, right = socket.socketpair()
    null = os.open(os.devnull, os.O_RDONLY)

    class ClosesAfterFirstSend(socket.socket):
        def sendmsg(self, *args: object) -> int:  # type: ignore[override]
            sent = super().sendmsg(*args)  # type: ignore[arg-type]
            right.sendall(wire.encode({"verb": "refused"}))
            right.close()
            return sent

    channel = wire.Channel(ClosesAfterFirstSend(fileno=left.detach()))
    channel.send({"verb": "attach"}, descriptors=[null])
    assert channel.receive().verb == "refused"
    channel.close()
    os.close(null)


def test_the_end_of_the_connection_is_a_wire_error_for_both_directions(pair: tuple[wire.Channel, wire.Channel]) -> None:
    left, right = pair
    right.close()
    with pytest.raises(wire.WireError):
        left.receive()
    with pytest.raises(wire.WireError):
        for _ in range(3):
            left.send({"verb": "x"})


def test_shut_ends_a_receive_that_waits_in_another_thread(pair: tuple[wire.Channel, wire.Channel]) -> None:
    left, _ = pair
    left.settimeout(None)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            left.receive()
        except wire.WireError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    left.shut()
    thread.join(5)
    assert not thread.is_alive() and len(raised) == 1


def test_a_header_is_compact_json() -> None:
    encoded = wire.encode({"verb": "x", "n": [1, 2]})
    assert encoded[8:] == json.dumps({"verb": "x", "n": [1, 2]}, separators=(",", ":")).encode()


def test_a_frame_that_trickles_ends_a_bounded_channel_and_silence_between_frames_does_not(
    pair: tuple[wire.Channel, wire.Channel],
) -> None:
    left, right = pair
    right.bound_frames(0.5)
    threading.Timer(1.3, lambda: left.send({"verb": "late enough"})).start()  # more than a second of nothing
    assert right.receive().verb == "late enough"
    data, going = wire.encode({"verb": "x"}, b"tail" * 100), True

    def trickle() -> None:
        for byte in data:
            if not going:
                return
            left._socket.send(bytes([byte]))
            time.sleep(0.02)

    sender = threading.Thread(target=trickle)
    sender.start()
    with pytest.raises(wire.LateError, match="took longer"):
        right.receive()
    going = False
    sender.join()
