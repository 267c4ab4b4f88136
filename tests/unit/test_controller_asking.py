"""How agents are asked for their status: a frame each way, bounded in time and bytes, and over TLS not believed before
the certificate proves who answers."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from agent_status import agent

from kvpool_agent.peer import frames
from kvpool_contract.status import Tls, encode_status
from kvpool_operator.certificates.authority import Pair, new_authority, new_client
from kvpool_operator.certificates.peers import PeerSettings
from kvpool_operator.controller import agents as agents_module
from kvpool_operator.controller import asking
from kvpool_operator.controller.agents import Agents
from kvpool_operator.controller.identity import Identity, IdentitySettings, client_context
from kvpool_operator.desired.pods import Pod
from kvpool_operator.desired.trust import Trust

LOOPBACK = "127.0.0.1"
ASKED = Pod("p", "p-uid", LOOPBACK, injected=True, expected=True)
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def ask(monkeypatch: pytest.MonkeyPatch, answer: Answer, times: int = 1) -> list[tuple[bool, str]]:
    """Whether each ask got a status, and the error."""

    async def scenario() -> list[tuple[bool, str]]:
        server = await asyncio.start_server(answer, LOOPBACK, 0)
        monkeypatch.setattr(asking, "PEER_PORT", server.sockets[0].getsockname()[1])
        agents = Agents()
        members = [(await agents.ask([ASKED]))[0] for _ in range(times)]
        server.close()
        return [(m.status is not None, m.error) for m in members]

    return asyncio.run(scenario())


def answering(document: bytes, message: frames.AnyMessage | None = None) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for wanted in (frames.Hello, frames.Status):
            header, tail = frames.decode_lengths(await reader.readexactly(8))
            found = frames.decode(await reader.readexactly(header))
            assert isinstance(found, wanted) and tail == 0
            if isinstance(found, frames.Hello):
                assert frames.choose_version(found.versions) == frames.STATUS_VERSION
                writer.write(frames.encode(frames.Welcome(frames.STATUS_VERSION, "p-uid", "i", "Ready(warm)", "", 0)))
        writer.write(frames.encode(message or frames.StatusTold(), len(document)) + document)
        await writer.drain()
        writer.close()

    return answer


good = answering(encode_status(agent(member=ASKED.uid)))


def test_an_agent_is_asked_in_the_peers_own_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, good) == [(True, "")]
    hello = frames.Hello([frames.STATUS_VERSION], "chat", "controller", "controller")
    assert asking.question("chat") == frames.encode(hello) + frames.encode(frames.Status())


def test_what_is_no_status_is_told_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.LENGTHS.pack(8, asking.MAX_ANSWER + 1))
        await writer.drain()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    another = encode_status(agent(member="other-uid"))
    assert ask(monkeypatch, answering(another)) == [(False, "another pod answers at its address")]
    assert ask(monkeypatch, answering(b"", frames.Refused("busy"))) == [(False, "it refuses: busy")]
    ((_, sentence),) = ask(monkeypatch, answering(b"", frames.Ping()))
    assert sentence.startswith("it gives no status")
    assert ask(monkeypatch, broken) == [(False, "it ended the connection")]
    assert ask(monkeypatch, endless) == [(False, f"its status is longer than {asking.MAX_ANSWER} bytes")]
    ((_, sentence),) = ask(monkeypatch, answering(b"<html>"))
    assert sentence.startswith("the agent's status can't be read: ")
    monkeypatch.setattr(agents_module, "TIMEOUT_SECONDS", 0.1)
    assert ask(monkeypatch, silent) == [(False, "no answer within 0 s")]


def test_who_has_answered_may_miss_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def flaky(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        if len(asked) in (1, 3):
            await good(reader, writer)
        writer.close()

    bad = (False, "it ended the connection")
    assert ask(monkeypatch, flaky, 5) == [(True, ""), (True, ""), (True, ""), (True, ""), bad]


def test_many_that_are_silent_keep_neither_the_others_nor_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are asked at a time, and each would be waited for longer than this test lasts."""
    silent = [Pod(f"s{n}", f"s{n}-uid", "127.0.0.2", injected=True, expected=True) for n in range(9)]
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer.get_extra_info("sockname")[0])
        if asked[-1] != LOOPBACK:
            await asyncio.sleep(60)
        await good(reader, writer)

    async def scenario() -> list[str]:
        server = await asyncio.start_server(answer, "0.0.0.0", 0)
        monkeypatch.setattr(asking, "PEER_PORT", server.sockets[0].getsockname()[1])
        monkeypatch.setattr(agents_module, "PARALLEL_OF_POOL", 2)
        monkeypatch.setattr(agents_module, "TIMEOUT_SECONDS", 30)
        agents = Agents()
        await agents.ask([ASKED])
        monkeypatch.setattr(agents_module, "ASK_SECONDS", 0.5)
        found = [member.error for member in await agents.ask([*silent, ASKED])]
        server.close()
        return found

    assert asyncio.run(scenario()) == ["no answer within 30 s"] * 9 + [""]
    assert (asked.count(LOOPBACK), asked.count("127.0.0.2")) == (2, 2)


def test_nobody_is_asked_without_an_address_or_an_agent_and_a_closed_port_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        monkeypatch.setattr(asking, "PEER_PORT", taken.getsockname()[1])

    async def scenario() -> list[str]:
        pods = [
            ASKED,
            Pod("q", "q-uid", "", injected=True, expected=False),
            Pod("r", "r-uid", LOOPBACK, injected=False, expected=False),
            Pod("s", "s-uid", LOOPBACK, injected=True, expected=True, tls="Managed"),
        ]
        return [member.error for member in await Agents().ask(pods)]

    found = asyncio.run(scenario())
    assert found == ["no connection", "no address", "no address", "the controller has no certificate to ask with"]


# -- over TLS ----------------------------------------------------------------------------------------

NOW, DAY = datetime.now(UTC), timedelta(days=1)
AUTHORITY, STRANGER = (new_authority(name, NOW, 30 * DAY) for name in ("peers", "stranger"))
MEMBER = Pod("p", "p-uid", LOOPBACK, injected=True, expected=True, tls="Managed", k8s_namespace="a", pool="chat")
URI = "kvpool://c/ns/a/pool/chat/pod/p-uid"


def certificate(uri: str = URI, authority: Pair = AUTHORITY, now: datetime = NOW, life: timedelta = DAY) -> Pair:
    return new_client(authority, uri, now, life)


def ask_over_tls(
    monkeypatch: pytest.MonkeyPatch, folder: Path, shown: Pair, state: str = "ok", pod: Pod = MEMBER
) -> tuple[bool, str]:
    """As an agent serves: it takes the controller's certificate by the peers' authority."""
    for name, data in (("crt", shown.certificate), ("key", shown.key), ("ca", AUTHORITY.certificate)):
        (folder / name).write_bytes(data)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.minimum_version = ssl.TLSVersion.TLSv1_3
    server_side.load_cert_chain(folder / "crt", folder / "key")
    server_side.load_verify_locations(folder / "ca")
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.set_alpn_protocols(["kvpool"])
    identity = Identity(cast(Any, None), IdentitySettings(PeerSettings("n"), "s:443", "s"), list)
    identity.trust = Trust("c", "s:443", AUTHORITY.certificate.decode(), "")
    identity._cluster = "c"
    own = new_client(AUTHORITY, "kvpool://c/controller", NOW, DAY)
    identity._own = AUTHORITY, NOW + DAY, client_context(own)
    answer = answering(encode_status(agent(member=pod.uid, tls=Tls("Managed", state))))

    async def scenario() -> tuple[bool, str]:
        server = await asyncio.start_server(answer, LOOPBACK, 0, ssl=server_side)
        monkeypatch.setattr(asking, "PEER_PORT", server.sockets[0].getsockname()[1])
        (member,) = await Agents(identity).ask([pod])
        server.close()
        return member.status is not None, member.error

    return asyncio.run(scenario())


def test_the_certificate_proves_which_pod_has_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ask_over_tls(monkeypatch, tmp_path, certificate()) == (True, "")


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        (certificate(authority=STRANGER), "its certificate is not trusted"),
        (certificate(now=NOW - 3 * DAY), "its certificate is not trusted"),
        (certificate(now=NOW + DAY), "its certificate is not trusted"),
        (certificate("kvpool://c/ns/a/pool/chat"), "its certificate is not trusted"),
        (certificate("kvpool://c/ns/a/pool/chat/pod/q-uid"), "its certificate is of another pod"),
        (certificate("kvpool://c/ns/a/pool/other/pod/p-uid"), "its certificate is of another pool"),
        (certificate("kvpool://c/ns/b/pool/chat/pod/p-uid"), "its certificate is of another pool"),
        (certificate("kvpool://d/ns/a/pool/chat/pod/p-uid"), "its certificate is of another pool"),
        (certificate("kvpool://c/controller"), "its certificate is of another pool"),
        (certificate("https://c"), "its certificate names nobody"),
    ],
)
def test_what_does_not_prove_it_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: Pair, error: str
) -> None:
    assert ask_over_tls(monkeypatch, tmp_path, shown) == (False, error)


@pytest.mark.parametrize("state", ["no_certificate", "expired"])
def test_an_agent_without_a_certificate_may_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str) -> None:
    own = certificate("https://nobody", authority=STRANGER)
    assert ask_over_tls(monkeypatch, tmp_path, own, state) == (True, "")


def test_certificates_of_a_user_are_known_by_their_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pod = Pod("p", "p-uid", LOOPBACK, injected=True, expected=True, tls="Secret", k8s_namespace="a", pool="chat")
    theirs = certificate("kvpool://c/ns/a/pool/chat", authority=STRANGER)
    assert ask_over_tls(monkeypatch, tmp_path, theirs, pod=pod) == (True, "")
    other = certificate("kvpool://c/ns/a/pool/other", authority=STRANGER)
    assert ask_over_tls(monkeypatch, tmp_path, other, pod=pod) == (False, "its certificate is of another pool")
