"""Whether the time of an answer tells who lacks a cache namespace's key what lies in it.

    python benchmarks/tenant_timing.py [--samples 20000] [--clear] [--kinds locate fetch hot]

Inside TLS, as members talk, or with --clear without it. One member holds blocks of a tenant, which are hot. Three kinds
of questions are timed at the asker, in an order drawn anew for each round. Which of these blocks it holds (`locate`),
and for the blocks themselves (`fetch`):

    held      unentitled, about blocks that the member holds
    absent    unentitled, about blocks that nobody holds
    elsewhere unentitled, about a cache namespace that the member has never heard of
    miss      entitled, about blocks that nobody holds
    miss again the same once more (A/A)
    hit       entitled, about blocks that the member holds: what would show if one of them could tell

And which blocks are hot (`hot`):

    here      unentitled, about a cache namespace whose blocks are hot here
    here again the same once more (A/A)
    elsewhere unentitled, about one that the member has never heard of
    none      entitled, about one of which nothing is hot
    list      entitled, about the one whose blocks are hot

The ways of each asker share connections, dealt anew each round: every connection, with its thread at the other end, has
a pace of its own. Each question draws its names anew, and each way has as many to draw from as another, which no other
way of that asker asks about: names that are asked about twice as often as others are found faster, by a processor that
still has at hand where they would be. Either would tell ways apart that are the same.

How two ways are compared, and what power is: telling.py.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "agent"), str(HERE.parent / "tests" / "e2e"), str(HERE.parent / "examples" / "demo")]

import rounds  # noqa: E402
import secured  # noqa: E402
import telling  # noqa: E402
from local_member import POOL, LocalMember, bytes_of  # noqa: E402
from tenant_keys import ACME, ACME_ID, PUBLIC, PUBLIC_ID, acme, keyring  # noqa: E402

from kvpool_agent.peer import frames  # noqa: E402
from kvpool_agent.peer.connection import Connection  # noqa: E402
from kvpool_agent.peer.dial import Dialer, Identity  # noqa: E402
from kvpool_agent.peer.entitlement import Entitlement  # noqa: E402
from kvpool_agent.peer.tls import CLEAR, Transport  # noqa: E402
from kvpool_agent.policy.purposes import DEMAND  # noqa: E402
from kvpool_agent.store.tag import tag_of  # noqa: E402

BLOCKS, CONNECTIONS = 64, 3
NAMES = 512  # of which each question draws its own
LONGEST_SECONDS = 10.0  # that a fetch may take
UNHEARD = b"u" * 16  # no cache namespace's
_BLOCKS = (
    ("miss", "miss again"), ("absent", "held"), ("absent", "elsewhere"), ("miss", "absent"), ("miss", "held"),
    ("miss", "hit"),
)  # fmt: skip
_HEAT = (("here", "here again"), ("here", "elsewhere"), ("none", "here"), ("none", "list"))
COMPARED = {"locate": _BLOCKS, "fetch": _BLOCKS, "hot": _HEAT}


def names(what: str) -> list[bytes]:
    return [random.Random(f"{what} {n}").randbytes(16) for n in range(NAMES)]


def asked(connection: Connection, question: frames.AnyMessage, tail: bytes = b"") -> float:
    """Seconds from a question to its whole answer."""
    began = time.perf_counter()
    connection.send(question, tail)
    while True:
        answer, length = connection.receive()
        connection.read(length)
        if not isinstance(answer, frames.Block):
            taken = time.perf_counter() - began
            assert not isinstance(answer, frames.Refused), answer.reason
            return taken


class Hand:
    """Connections dealt in an order that is new for each round, each of them once."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._all, self._left = list(connections), list[Connection]()
        self._chance = random.Random(2)

    def draw(self) -> Connection:
        if not self._left:
            self._left = self._chance.sample(self._all, len(self._all))
        return self._left.pop()


class Parties:
    """The member, and who asks it: `entitled` and `unentitled` hand out their connections."""

    def __init__(self, place: Path, transports: Mapping[str, Transport]) -> None:
        (place / "members").touch()
        held_by_member = keyring(place, "member", public=[PUBLIC], acme=[ACME])
        self.member = LocalMember("member", place / "members", keyring=held_by_member, transport=transports["member"])
        slab, self.held = acme(self.member), names("held")
        for space in (slab, self.member.slab):  # as many blocks in the one that answers for the other
            for key in self.held if space is slab else names("public"):
                (slot,) = space.arena.reserve(1, time.monotonic())
                space.view(slot)[:] = bytes_of(key)
                space.arena.commit(key, b"", slot, tag_of(key, space.view(slot)), foreign=False)
        slab.heat.count(self.held, time.monotonic())
        self.member.server.start()
        ring = keyring(place, "asker", public=[PUBLIC], acme=[ACME])
        for name, known in zip((PUBLIC_ID, ACME_ID), ring.spaces, strict=True):
            ring.register(name, known)
        proof = Entitlement(ring, ("asker", "inc"))
        asker = Dialer(Identity(POOL, "asker", "inc"), transports["asker"], proof)
        stranger = Dialer(Identity(POOL, "stranger", "inc"), transports["stranger"])
        ours, theirs = (
            [dialer.handshake(self.member.address)[0] for _ in range(CONNECTIONS)] for dialer in (asker, stranger)
        )
        assert all(proof.shares(connection, ACME_ID) for connection in ours)
        self.entitled, self.unentitled = Hand(ours), Hand(theirs)

    def about_blocks(self, question: Callable[[bytes], frames.AnyMessage]) -> dict[str, Callable[[], float]]:
        """The ways to ask a question that names blocks."""
        chance = random.Random(3)

        def way(hand: Hand, slab: bytes, keys: Sequence[bytes]) -> Callable[[], float]:
            return lambda: asked(hand.draw(), question(slab), frames.pack_keys(chance.sample(keys, BLOCKS)))

        return {
            "held": way(self.unentitled, ACME_ID, self.held),
            "absent": way(self.unentitled, ACME_ID, names("absent")),
            "elsewhere": way(self.unentitled, UNHEARD, names("elsewhere")),
            "miss": way(self.entitled, ACME_ID, names("miss")),
            "miss again": way(self.entitled, ACME_ID, names("miss again")),
            "hit": way(self.entitled, ACME_ID, self.held),
        }

    def about_heat(self) -> dict[str, Callable[[], float]]:
        def way(hand: Hand, slab: bytes) -> Callable[[], float]:
            return lambda: asked(hand.draw(), frames.Hot(slab, BLOCKS))

        return {
            "here": way(self.unentitled, ACME_ID),
            "here again": way(self.unentitled, ACME_ID),
            "elsewhere": way(self.unentitled, UNHEARD),
            "none": way(self.entitled, PUBLIC_ID),
            "list": way(self.entitled, ACME_ID),
        }

    def ways(self, kind: str) -> dict[str, Callable[[], float]]:
        match kind:
            case "locate":
                return self.about_blocks(frames.Locate)
            case "fetch":
                return self.about_blocks(lambda slab: frames.Fetch(slab, DEMAND, LONGEST_SECONDS))
            case _:
                return self.about_heat()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--clear", action="store_true", help="without TLS")
    parser.add_argument("--kinds", nargs="+", choices=COMPARED, default=list(COMPARED))
    options = parser.parse_args()
    who = ("member", "asker", "stranger")
    transports: dict[str, Transport] = dict.fromkeys(who, CLEAR)
    if not options.clear:
        pairs = zip(who, secured.pairs(*who, pool=POOL), strict=True)
        transports = {name: pair.transport(pool=POOL) for name, pair in pairs}
    inside = "in clear" if options.clear else "inside TLS"
    with tempfile.TemporaryDirectory() as folder:
        parties = Parties(Path(folder), transports)
        for kind in options.kinds:
            found = rounds.run(parties.ways(kind), options.samples, warm_up=200)
            print(f"{rounds.machine()}; {kind}, {options.samples} questions each way {inside}, {BLOCKS} blocks each")
            telling.report(found, COMPARED[kind], "elsewhere")
        parties.member.kill()


if __name__ == "__main__":
    main()
