"""Carries rows from one member's arena into another's by RDMA: carry.py ROWS, of which a file is made as `write` does.

What has come is written to $KVPOOL_RDMA_FILES in the same way, with the tags under which it was published, and what was
counted on the way. KVPOOL_RDMA_DEVICES names the two devices.
"""

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rdma.member import WAIT, RdmaMember, be_patient, members

CARRIED = "carried"


@dataclass(frozen=True)
class Row:
    key: bytes
    tag: bytes
    content: bytes


@dataclass(frozen=True)
class Rows:
    """What lies in a file. moved: (blocks, bytes) that came by RDMA, and in all; counters: of the reader's."""

    rows: list[Row]
    by_rdma: tuple[int, int] = (0, 0)
    by_all: tuple[int, int] = (0, 0)
    counters: dict[str, int] = field(default_factory=dict)


def write(path: Path, rows: Rows) -> None:
    path.write_bytes(msgspec.msgpack.encode(rows))


def read(path: Path) -> Rows:
    return msgspec.msgpack.decode(path.read_bytes(), type=Rows)


def arrived(member: RdmaMember, keys: list[bytes]) -> list[Row]:
    lease, held = member.slab.arena.lease(keys, time.monotonic(), WAIT)
    found = [Row(one.key, one.tag, bytes(member.slab.view(one.slot))) for one in held if one is not None]
    member.slab.arena.release(lease)
    return found


def main() -> None:
    be_patient(setattr)
    given = read(Path(sys.argv[1])).rows
    devices = os.environ["KVPOOL_RDMA_DEVICES"].split(",")
    keys, size = [row.key for row in given], len(given[0].content)
    made = (
        RdmaMember(uid, [device], 2 * len(given), slot_bytes=size) for uid, device in zip("ab", devices, strict=True)
    )
    with members(*made) as (a, b):
        a.store(keys, rows=[row.content for row in given])
        a.until_ready(), b.until_ready()
        failed = b.fetch(a, keys)
        counters = {**b.account.counters, **({f"fetch_{failed}": 1} if failed else {})}
        carried = Rows(arrived(b, keys), b.moved("rdma_in"), b.moved("demand_in"), counters)
        write(Path(os.environ["KVPOOL_RDMA_FILES"]) / CARRIED, carried)


if __name__ == "__main__":
    main()
