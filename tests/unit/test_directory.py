"""Where members are read from, who is alive, and how a chain that several hold is joined."""

import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory import locate
from kvpool_agent.directory import members as view
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.locate import Holders, Locator
from kvpool_agent.directory.members import Member, MemberView, SeedError, read_seeds
from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.policy.breaker import FAILURES
from kvpool_contract.config import Members
from kvpool_contract.names import format_fingerprint

FORMAT = b"f" * 16


class Empty:
    """A source that holds nothing, or one key."""

    pool = "pool"

    def __init__(self, member: str, held: bytes = b"", fingerprint: bytes = FORMAT) -> None:
        self.member, self.held, self.fingerprint = member, held, fingerprint
        self.fields, self.described, self.pings = b"", 0, 0
        self.incarnation = "inc"

    def welcome(self, version: int) -> frames.Welcome:
        self.pings += 1
        return frames.Welcome(version, self.member, self.incarnation, "Ready(warm)", self.fingerprint.hex(), 1)

    def holds(self, fingerprint: bytes, keys: list[bytes]) -> list[bool]:
        return [key == self.held for key in keys]

    def description(self) -> bytes:
        self.described += 1
        return self.fields

    def hottest(self, fingerprint: bytes, limit: int) -> list[object]:
        return []


@contextmanager
def serving(source: Empty) -> Iterator[tuple[serve.PeerServer, str]]:
    server = serve.PeerServer("127.0.0.1", 0, source)  # type: ignore[arg-type]
    server.start()
    try:
        yield server, f"127.0.0.1:{server.port}"
    finally:
        server.close()


@pytest.fixture
def members_file(tmp_path: Path) -> Path:
    made = tmp_path / "members"
    made.write_text("")
    return made


@pytest.fixture
def make_view(members_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MemberView]]:
    monkeypatch.setattr(view, "REFRESH_SECONDS", 0.02)
    made: list[MemberView] = []

    def make(
        own: str = "own",
        on_gone: Callable[[str], None] = lambda _: None,
        on_other: Callable[[str], None] = lambda _: None,
        own_format: Callable[[], str] = str,
    ) -> MemberView:
        dialer = Dialer(Identity("pool", own, "inc"))
        made.append(MemberView(Members(file=str(members_file)), dialer, own, on_gone, on_other, own_format))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_members_file_is_read_without_blanks_comments_and_doubles(members_file: Path) -> None:
    members_file.write_text("b:2\n\n# a comment\n  a:1 \nb:2\n")
    assert read_seeds(Members(file=str(members_file))) == ["a:1", "b:2"]


def test_a_name_resolves_to_all_its_addresses_with_their_port(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("10.0.0.2", 7700)), (2, 1, 6, "", ("10.0.0.1", 7700)), (10, 1, 6, "", ("fd00::1", 7700))]
    monkeypatch.setattr(view.socket, "getaddrinfo", lambda host, port, type: found if host == "pool.ns" else [])
    assert read_seeds(Members(dns="pool.ns:7700")) == ["10.0.0.1:7700", "10.0.0.2:7700", "[fd00::1]:7700"]


def test_sources_of_members_that_cannot_be_read_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SeedError, match="members file"):
        read_seeds(Members(file=str(tmp_path / "absent")))

    def fails(*_: object, **__: object) -> None:
        raise view.socket.gaierror("no such name")

    monkeypatch.setattr(view.socket, "getaddrinfo", fails)
    with pytest.raises(SeedError, match="members name nowhere"):
        read_seeds(Members(dns="nowhere:7700"))


@pytest.mark.parametrize("what", ["thread", "handshake"])
def test_a_member_that_a_fault_of_this_ones_has_kept_away_is_live_when_the_fault_is_over(
    members_file: Path, make_view: Callable[..., MemberView], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As without a thread, or without the descriptor that a certificate takes on its way to the library."""
    where, name = (view._Link, "start") if what == "thread" else (Dialer, "handshake")
    works, tries = getattr(where, name), []

    def fails_once(*arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise RuntimeError("can't start new thread") if what == "thread" else OSError("too many open files")
        return works(*arguments)

    monkeypatch.setattr(where, name, fails_once)
    with serving(Empty("one")) as (_, address):
        members_file.write_text(f"{address}\n")
        members = make_view()
        wait_for("a live member", lambda: [m.address for m in members.live(FORMAT)] == [address], 10, 0.01)
    assert len(tries) >= 2


def test_the_view_follows_the_file_and_tells_who_has_gone(
    members_file: Path, make_view: Callable[..., MemberView], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[str] = []
    with serving(Empty("one")) as (_, first), serving(Empty("two")) as (_, second):
        members = make_view(on_gone=gone.append)
        assert members.all() == []
        members_file.write_text(f"{first}\n{second}\n")
        wait_for("two live members", lambda: len(members.live(FORMAT)) == 2, 10, 0.01)
        replaced = members_file.with_suffix(".new")  # whole: a file that is read half written names fewer members
        replaced.write_text(f"{second}\n")
        replaced.rename(members_file)
        wait_for("one live member", lambda: [m.address for m in members.live(FORMAT)] == [second], 10, 0.01)
        wait_for("told", lambda: gone, 10, 0.01)
        assert gone == [first]
        failures: list[SeedError] = []

        def failing(_: Members) -> list[str]:
            failures.append(SeedError("gone"))
            raise failures[-1]

        monkeypatch.setattr(view, "read_seeds", failing)
        wait_for("reads again", lambda: len(failures) > 2, 10, 0.01)
        assert [m.address for m in members.live(FORMAT)] == [second]  # an unreadable file keeps the last view


def test_a_member_is_known_by_its_answer_and_never_lists_itself(
    members_file: Path, make_view: Callable[..., MemberView]
) -> None:
    with serving(Empty("own")) as (_, own), serving(Empty("peer", fingerprint=b"g" * 16)) as (_, peer):
        members_file.write_text(f"{own}\n{peer}\n")
        members = make_view(own="own")
        members.settle(10)
        (found,) = members.all()
        assert (found.address, found.live, found.welcome.member) == (peer, True, "peer")  # type: ignore[union-attr]
        assert members.live(FORMAT) == []  # of another format
        assert members.live(b"g" * 16) == [found]


def test_a_member_that_stops_answering_is_not_live_and_comes_back_by_itself(
    members_file: Path, make_view: Callable[..., MemberView]
) -> None:
    with serving(Empty("peer")) as (server, address):
        members_file.write_text(f"{address}\n")
        members = make_view()
        wait_for("live", lambda: members.live(FORMAT), 10, 0.01)
    wait_for("gone", lambda: not members.live(FORMAT), 10, 0.01)
    (lost,) = members.all()
    assert lost.error and lost.welcome is not None  # what it last said is still known
    again = serve.PeerServer("127.0.0.1", server.port, Empty("peer"))  # type: ignore[arg-type]
    again.start()
    try:
        wait_for("back", lambda: members.live(FORMAT), 10, 0.01)
    finally:
        again.close()


def test_a_member_of_another_format_is_asked_for_its_fields_once(
    members_file: Path, make_view: Callable[..., MemberView]
) -> None:
    fields = {"dtype": "bfloat16"}
    other = Empty("other", fingerprint=format_fingerprint(fields))
    other.fields = frames.pack_fields(fields)
    mute = Empty("mute", fingerprint=b"m" * 16)
    mute.fields = b'{"dtype":"of another format than it has"}'
    with serving(other) as (_, first), serving(mute) as (_, second), serving(Empty("same")) as (_, third):
        members_file.write_text(f"{first}\n{second}\n{third}\n")
        formats = [""]  # no engine has attached yet
        members = make_view(own_format=lambda: formats[0])
        wait_for("pings", lambda: min(other.pings, mute.pings) > 2, 10, 0.01)
        assert (other.described, mute.described) == (0, 0)
        formats[0] = FORMAT.hex()
        wait_for("fields", lambda: [m for m in members.all() if m.fields == fields], 10, 0.01)
        before = other.pings, mute.pings
        wait_for("more pings", lambda: other.pings > before[0] + 5 and mute.pings > before[1] + 5, 10, 0.01)
        assert (other.described, mute.described) == (1, 1)
        assert all(member.live for member in members.all())
        other.fingerprint = FORMAT
        wait_for("our format", lambda: not any(member.fields for member in members.all()), 10, 0.01)


@pytest.mark.parametrize("next_one", [("other", "inc"), ("peer", "next")], ids=["member", "incarnation"])
def test_somebody_else_at_an_address_is_told_and_a_connection_has_one_end(
    members_file: Path, make_view: Callable[..., MemberView], next_one: tuple[str, str]
) -> None:
    told: list[str] = []
    source = Empty("peer")
    with serving(source) as (_, address):
        members_file.write_text(f"{address}\n")
        members = make_view(on_other=told.append)
        wait_for("live", lambda: members.live(FORMAT), 10, 0.01)
        (before,) = members.all()
        source.member, source.incarnation = next_one  # an answer that the connection's own handshake contradicts
        wait_for("told", lambda: told, 10, 0.01)
        wait_for("known", lambda: members.live(FORMAT), 10, 0.01)
    (after,) = members.all()
    assert before.welcome is not None and after.welcome is not None
    assert (after.welcome.member, after.welcome.incarnation) == next_one
    assert told == [address]


def test_what_an_address_tells_that_was_given_up_meanwhile_brings_nobody_back(
    members_file: Path, make_view: Callable[..., MemberView]
) -> None:
    peer, other = Empty("peer"), Empty("other")
    with serving(peer) as (_, first), serving(other) as (_, second):
        asked, answer = threading.Event(), threading.Event()

        class Tells:
            def renew(self, holder: tuple[str, str]) -> frames.Renewed:
                asked.set()
                answer.wait(10)
                return frames.Renewed(0, [(first, "peer")])

        own = serve.PeerServer("127.0.0.1", 0, Empty("own"), directory=Tells())  # type: ignore[arg-type]
        own.start()
        try:
            members_file.write_text(f"127.0.0.1:{own.port}\n{first}\n")
            members = make_view()  # it lists itself, as its headless Service does
            wait_for("live", lambda: first in [m.address for m in members.live(FORMAT)] and asked.is_set(), 10, 0.01)
            members_file.write_text(f"{second}\n")
            wait_for("given up", lambda: [m.address for m in members.all()] == [second], 10, 0.01)
            answer.set()
            before = other.pings
            wait_for("pings", lambda: other.pings > before + 5, 10, 0.01)
            assert ([m.address for m in members.all()], members.learnt) == ([second], 0)
        finally:
            answer.set()
            own.close()


def test_settle_waits_for_seeds_that_are_not_there_no_longer_than_their_first_try(
    members_file: Path, make_view: Callable[..., MemberView]
) -> None:
    members_file.write_text("127.0.0.1:1\n")
    members = make_view()
    members.settle(10)
    (found,) = members.all()
    assert (found.live, found.welcome) == (False, None)


def test_who_was_not_asked_for_want_of_a_thread_is_not_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "LOCATE_SECONDS", 0.5)
    asked, go_on = [], threading.Event()

    def hangs(address: str, *_: object) -> bytes:
        asked.append(address)
        assert go_on.wait(10)
        return b"\0"

    live = [Member(name, True, Empty(name).welcome(1)) for name in "ab"]
    members: Any = types.SimpleNamespace(live=lambda _: live)
    dialer: Any = types.SimpleNamespace(located=hangs)
    breakers = Breakers(Account())
    locator = Locator(members, dialer, breakers)
    locator._pool = ThreadPoolExecutor(1)
    try:
        assert locator.holders(FORMAT, [[bytes(16)]], float("inf")).reason == "directory_unreachable"
        assert [breakers.view(name) for name in "ab"] == [("closed", 1), ("closed", 0)]
    finally:
        go_on.set()
        locator.close()
    assert asked == ["a"]


def test_a_lookup_asks_all_live_members_and_names_the_reason_where_the_run_ends(
    members_file: Path, make_view: Callable[..., MemberView]
) -> None:
    keys = [bytes([n]) * 16 for n in range(3)]
    dialer = Dialer(Identity("pool", "own", "inc"))
    with serving(Empty("a", keys[0])) as (first, a), serving(Empty("b", keys[1])) as (_, b):
        members_file.write_text(f"{a}\n{b}\n")
        members = make_view()
        locator = Locator(members, dialer, Breakers(Account()))
        wait_for("two live members", lambda: len(members.live(FORMAT)) == 2, 10, 0.01)
        deadline = float("inf")
        chains = [keys[:2], keys[1:]]
        both = [{a: [True, False], b: [False, True]}, {b: [True, False]}]
        assert locator.holders(FORMAT, chains, deadline) == Holders(both, "never_published", [2, 2])
        assert locator.holders(b"g" * 16, chains, deadline) == Holders([{}, {}], "incompatible")
        first.close()
        frozen = Member(a, True, Empty("a").welcome(1))
        members.live = lambda _fingerprint: [frozen]  # type: ignore[method-assign,assignment]
        for _ in range(FAILURES):
            found = locator.holders(FORMAT, chains, deadline)
            assert (found.held[0].get(a), found.reason) == (None, "directory_unreachable")
        assert locator.holders(FORMAT, chains, deadline) == Holders([{}, {}], "breaker_open")  # asked no more
        locator.close()
    dialer.close()
