"""All traffic between the agents of a pool, caught on the interface: nothing that was planted is in it."""

import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node, block_name
from capture import Capture
from replica import free_port
from signer import Signer, managed
from standin_engine import Served, block_bytes, engine_keys, prompt

from kvpool_contract.names import TEMPLATE_VARIABLE

MODEL, TEMPLATE, POOL = "planted-model-of-a-tenant", "planted-template", "planted-pool"
BLOCKS, ROW = 8, 4096


@dataclass
class Planted:
    """What an eavesdropper must not find, by what it is."""

    names: dict[str, bytes]

    def found_in(self, streams: list[bytes]) -> set[str]:
        return {what for what, text in self.names.items() if any(text in stream for stream in streams)}


def planted(nodes: list[Node], fingerprint: str, prompts: list[list[int]]) -> Planted:
    names = {
        "pool": POOL.encode(), "model": MODEL.encode(), "template": TEMPLATE.encode(),
        "format": bytes.fromhex(fingerprint), "format in hex": fingerprint.encode(),
        "a frame of the protocol": b"hello", "another": b"hotlist", "a state": b"Ready(",
    }  # fmt: skip
    for node in nodes:
        names[f"member {node.replica.name}"] = node.replica.member.encode()
        names[f"incarnation {node.replica.name}"] = node.status().incarnation.encode()
    for n, tokens in enumerate(prompts):
        for i, key in enumerate(engine_keys(tokens)):
            names[f"block key {n}.{i}"] = block_name(key, fingerprint)
            # every block's bytes, from its middle on too: not a header of them alone
            names[f"KV {n}.{i}"] = block_bytes(key, ROW)[:64]
            names[f"KV {n}.{i}, its end"] = block_bytes(key, ROW)[-64:]
    return Planted(names)


def secrets(nodes: list[Node]) -> dict[str, bytes]:
    """Private keys, which are never anywhere but in their owner's memory."""
    found = {}
    for node in nodes:
        text = (node.replica.identity / "tls.key").read_text()
        found[f"key of {node.replica.name}"] = text.splitlines()[2].encode()
        der = ssl.PEM_cert_to_DER_cert(text.replace("PRIVATE KEY", "CERTIFICATE"))
        found[f"key of {node.replica.name}, raw"] = der[36:68]
    return found


@pytest.mark.parametrize("mode", ["Files", "Managed", "Disabled"])
def test_an_eavesdropper_finds_nothing_inside_tls_and_everything_in_clear(tmp_path: Path, mode: str) -> None:
    tls = mode != "Disabled"
    pool = AgentPool(tmp_path, tls=tls, pool=POOL)
    signer = Signer(pool.pool.authority, POOL)
    try:
        if mode == "Managed":
            signer.start()
            a, b = (managed(pool, signer, f"planted-{name}") for name in "ab")
        else:
            a, b = (pool.node(f"planted-{name}") for name in "ab")
        for node in (a, b):
            node.replica.agent_environment[TEMPLATE_VARIABLE] = TEMPLATE
        hot, cold = prompt("hot", BLOCKS), prompt("cold", BLOCKS)
        try:
            signers = [signer.port] if mode == "Managed" else []  # else it is anybody's, to connect from
            looking = Capture([*signers, *(node.replica.peer_port for node in (a, b))])
        except PermissionError:
            pytest.skip("needs CAP_NET_RAW, to look at the loopback interface")
        with looking as capture:
            a.start().attach(model=MODEL)
            a.engine.serve(hot)
            a.until_state("Ready(degraded)", "nothing_to_warm")
            a.until_blocks(BLOCKS)
            # a newcomer asks for the format's fields and the hot set, and is then attached
            b.start()
            b.until("the hot set", lambda status: status.arena.blocks == BLOCKS)
            b.attach(model=MODEL).until_state("Ready(warm)")
            a.until_sees(b)
            a.engine.serve(cold)
            b.until_sees(a)
            assert b.engine.serve(cold) == Served(pool=BLOCKS)
            status = b.status()
            wanted = planted([a, b], status.format, [hot, cold])
            hidden = Planted(secrets([a, b]) if mode == "Files" else {name: name.encode() for name in signer.tokens})
            capture.plant(a.replica.peer_port, b"\n".join(hidden.names.values()))
        assert capture.dropped == 0
        streams = capture.streams()
        moved = status.transfers["prewarm_in"].bytes + status.transfers["demand_in"].bytes
        assert moved == 2 * BLOCKS * ROW < sum(map(len, streams))
        assert wanted.found_in(streams) == (set() if tls else set(wanted.names))
        assert hidden.found_in(streams) == set()
        assert hidden.found_in(capture.planted()) == set(hidden.names)
        assert status.tls.mode == mode
        if mode == "Managed":
            assert len(signer.asked) == len(hidden.names) == 2
            asked = sum(len(request.token) + len(request.csr) for request in signer.asked)
            assert sum(map(len, capture.streams(signer.port))) > asked  # what went there was looked at, too
        in_clear = status.counters.get("connections_in_clear", 0)
        assert (in_clear == 0) is tls
    finally:
        pool.stop()
        signer.stop()


def test_an_eavesdropper_has_nothing_of_other_ports_however_busy_they_are() -> None:
    over = threading.Event()

    def talk() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as sending,
        ):
            receiving, _ = server.accept()
            with receiving:
                while not over.is_set():
                    sending.sendall(b"Ready(")
                    receiving.recv(64)

    talking = threading.Thread(target=talk)
    talking.start()
    seen = []
    try:
        for _ in range(20):
            with Capture([free_port()]) as capture:
                pass
            seen += capture.streams()
    except PermissionError:
        pytest.skip("needs CAP_NET_RAW, to look at the loopback interface")
    finally:
        over.set()
        talking.join()
    assert seen == []
