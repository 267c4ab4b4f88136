"""The key of a cache namespace on a real cluster: a kubelet brings it to the agents, and it is rotated under load as
docs/tenants.md says, without a load that fails."""

import base64
import json

from cluster.chart import Chart
from cluster.engines import Member
from cluster.kube import AGENT, wait_for
from cluster.standins import StandIns
from cluster.turns import load
from kvpool_contract.tenants import KEYS_FOLDER

BLOCKS, MORE = 4, 10
SECRET, ENTRY = "tenant-keys", "kv"
OLD, NEW = b"o" * 32, b"n" * 32
FOLLOWING_SECONDS = 240  # a kubelet brings a Secret into its pods within two minutes
SPACES = {"cacheNamespaces": [{"name": "public", "keySecretRef": {"name": SECRET, "key": ENTRY}}]}


def file_of(*keys: bytes) -> str:
    return "\n".join(base64.b64encode(key).decode() for key in keys)


def write(standins: StandIns, *keys: bytes) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {ENTRY: file_of(*keys)}}
    standins.kubectl("apply", "-f", "-", stdin=json.dumps(secret))


def mounted(standins: StandIns, member: Member, container: str) -> str:
    """The key file as a container has it; empty where it has none."""
    command = ("exec", member.pod.name, "-c", container, "--", "cat", f"{KEYS_FOLDER}/public")
    return standins.kubectl(*command, check=False).stdout


def in_force(members: list[Member]) -> list[int]:
    """How many keys each agent has."""
    return [space.keys for member in members for space in member.status().cache_namespaces]


def test_a_key_is_rotated_under_load_and_no_load_fails(chart: Chart, standins: StandIns) -> None:
    write(standins, OLD)
    members = standins.create(2, SPACES)
    wait_for("the key", lambda: in_force(members) == [1, 1], FOLLOWING_SECONDS)
    for member in members:
        assert mounted(standins, member, AGENT) == file_of(OLD)
        assert mounted(standins, member, "engine") == ""
    standins.heat("hot", BLOCKS)
    with load(members, BLOCKS) as loads:
        for keys in ((OLD, NEW), (NEW, OLD), (NEW,)):
            write(standins, *keys)
            for member in members:
                there = file_of(*keys)
                wait_for("the file", lambda m=member, t=there: mounted(standins, m, AGENT) == t, FOLLOWING_SECONDS, 2.0)
            at, many = loads.whole, len(keys)
            wait_for("the keys", lambda n=many: in_force(members) == [n, n], 60)
            wait_for("sharing goes on", lambda at=at: loads.whole >= at + MORE, 120)
    assert loads.others == [], (loads.whole, [m.status().counters for m in members])
    for member in members:
        status = member.status()
        assert (status.tls.state, status.counters.get("connections_in_clear", 0)) == ("ok", 0)
        assert [space.problem for space in status.cache_namespaces] == [""]
        assert status.misses.keys() <= {"never_published"}
