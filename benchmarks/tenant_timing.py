"""Whether the time of an answer tells who lacks a cache namespace's key what lies in it.

    python benchmarks/tenant_timing.py [--samples 20000] [--clear]

Inside TLS, as members talk, or with --clear without it. One member holds blocks of a tenant. Questions are timed at the
asker, in an order drawn anew for each round:

    held      unentitled, about blocks that the member holds
    absent    unentitled, about blocks that nobody holds
    elsewhere unentitled, about a cache namespace that the member has never heard of
    miss      entitled, about blocks that nobody holds
    miss again the same once more (A/A)
    hit       entitled, about blocks that the member holds: what would show if one of them could tell

The three ways of each asker share three connections, dealt anew each round: every connection, with its thread at the
other end, has a pace of its own, which would tell ways apart that are the same.

Two ways are compared as an attacker would, by how well the time of one answer tells which it was: the area under the
ROC curve is 0.5 where it can't. z is its distance from 0.5 in standard errors. Power: the least delay, added to one
way's times, that is found at z > 3 in 95 of 100 resamplings of this run.
"""

import argparse
import bisect
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "agent"), str(HERE.parent / "tests" / "e2e"), str(HERE.parent / "examples" / "demo")]

import rounds  # noqa: E402
import secured  # noqa: E402
from local_member import POOL, LocalMember, bytes_of  # noqa: E402
from tenant_keys import ACME, ACME_ID, PUBLIC, PUBLIC_ID, acme, keyring  # noqa: E402

from kvpool_agent.peer import frames  # noqa: E402
from kvpool_agent.peer.connection import Connection  # noqa: E402
from kvpool_agent.peer.dial import Dialer, Identity  # noqa: E402
from kvpool_agent.peer.entitlement import Entitlement  # noqa: E402
from kvpool_agent.peer.tls import CLEAR  # noqa: E402
from kvpool_agent.store.tag import tag_of  # noqa: E402

BLOCKS, WAYS = 64, 3
FOUND_AT, SURE = 3.0, 95
RESAMPLES, RESAMPLED = 100, 4000


def names(what: str) -> list[bytes]:
    return [random.Random(f"{what} {n}").randbytes(16) for n in range(BLOCKS)]


def asked(connection: Connection, slab: bytes, keys: Sequence[bytes]) -> float:
    """Seconds from a question to its whole answer."""
    tail = frames.pack_keys(keys)
    began = time.perf_counter()
    connection.send(frames.Locate(slab), tail)
    _, length = connection.receive()
    connection.read(length)
    return time.perf_counter() - began


class Hand:
    """Connections dealt in an order that is new for each round, each of them once."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._all, self._left = list(connections), list[Connection]()
        self._chance = random.Random(2)

    def draw(self) -> Connection:
        if not self._left:
            self._left = self._chance.sample(self._all, len(self._all))
        return self._left.pop()


def area(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Area under the ROC curve, and its distance from 0.5 in standard errors."""
    order = sorted(one)
    below = sum(bisect.bisect_left(order, x) + bisect.bisect_right(order, x) for x in other) / 2
    found = below / (len(one) * len(other))
    error = math.sqrt((len(one) + len(other) + 1) / (12 * len(one) * len(other)))
    return found, (found - 0.5) / error


def least_delay(times: Sequence[float], samples: int) -> float:
    """Seconds that would have been found with so many samples: searched with fewer, for whose error it is scaled."""
    chance = random.Random(1)

    def is_found(delay: float) -> bool:
        found = 0
        for _ in range(RESAMPLES):
            one = chance.choices(times, k=RESAMPLED)
            other = [x + delay for x in chance.choices(times, k=RESAMPLED)]
            found += area(one, other)[1] * math.sqrt(samples / RESAMPLED) > FOUND_AT
        return found >= SURE * RESAMPLES // 100

    low, high = 0.0, statistics.median(times)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--clear", action="store_true", help="without TLS")
    options = parser.parse_args()
    samples, who = options.samples, ("member", "asker", "stranger")
    if options.clear:
        transports = dict.fromkeys(who, CLEAR)
    else:
        pairs = zip(who, secured.pairs(*who, pool=POOL), strict=True)
        transports = {name: pair.transport(pool=POOL) for name, pair in pairs}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "members").touch()
        held_by_member = keyring(place, "member", public=[PUBLIC], acme=[ACME])
        member = LocalMember("member", place / "members", keyring=held_by_member, transport=transports["member"])
        slab, held = acme(member), names("held")
        for space in (slab, member.slab):  # as many blocks in the one that answers for the other
            for key in held if space is slab else names("public"):
                (slot,) = space.arena.reserve(1, time.monotonic())
                space.view(slot)[:] = bytes_of(key)
                space.arena.commit(key, b"", slot, tag_of(key, space.view(slot)), foreign=False)
        member.server.start()
        ring = keyring(place, "asker", public=[PUBLIC], acme=[ACME])
        for name, space in zip((PUBLIC_ID, ACME_ID), ring.spaces, strict=True):
            ring.register(name, space)
        proof = Entitlement(ring, ("asker", "inc"))
        entitled = Dialer(Identity(POOL, "asker", "inc"), transports["asker"], proof)
        stranger = Dialer(Identity(POOL, "stranger", "inc"), transports["stranger"])
        absent, unheard = names("absent"), b"u" * 16

        theirs = [stranger.handshake(member.address)[0] for _ in range(WAYS)]
        ours = [entitled.handshake(member.address)[0] for _ in range(WAYS)]
        assert all(proof.shares(connection, ACME_ID) for connection in ours)
        unentitled, known = Hand(theirs), Hand(ours)
        ways = {
            "held": lambda: asked(unentitled.draw(), ACME_ID, held),
            "absent": lambda: asked(unentitled.draw(), ACME_ID, absent),
            "elsewhere": lambda: asked(unentitled.draw(), unheard, held),
            "miss": lambda: asked(known.draw(), ACME_ID, absent),
            "miss again": lambda: asked(known.draw(), ACME_ID, absent),
            "hit": lambda: asked(known.draw(), ACME_ID, held),
        }
        found = rounds.run(ways, samples, warm_up=200)
        member.kill()
    inside = "in clear" if options.clear else "inside TLS"
    print(f"{rounds.machine()}; {samples} questions each way {inside}, {BLOCKS} blocks each")
    for name, times in found.items():
        print(f"  {name:<12} median {statistics.median(times) * 1e6:8.1f} us   p99 {rounds.p99(times) * 1e6:8.1f} us")
    for one, other in (
        ("miss", "miss again"), ("absent", "held"), ("absent", "elsewhere"), ("miss", "absent"), ("miss", "held"),
        ("miss", "hit"),
    ):  # fmt: skip
        where, z = area(found[one], found[other])
        print(f"  {one} against {other:<12} area {where:.4f}   z {z:+6.2f}")
    print(f"  power: a delay of {least_delay(found['absent'], samples) * 1e6:.2f} us would have been found")


if __name__ == "__main__":
    main()
