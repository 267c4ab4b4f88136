"""Keys that no Secret of the user's holds, made by the real controller under its documented rights."""

import base64
import json

from cluster.controllers import ACCOUNT, Controller
from cluster.kube import wait_for
from cluster.pools import NAME, SECONDS, Pools
from kvpool_contract.tenants import parse_keys

SECRET = "kvpool-keys"
PUBLIC, UMBRELLA = f"{NAME}.public", f"{NAME}.umbrella"
SPACES = [
    {"name": "public"},
    {"name": "acme", "podSelector": {}, "quota": {"memoryPercent": 10}, "keySecretRef": {"name": "acme"}},
    {"name": "umbrella", "podSelector": {}, "quota": {"memoryPercent": 10}},
]


def entries(pools: Pools) -> dict[str, bytes]:
    """The files in the managed Secret."""
    text = pools.kubectl("get", "secret", SECRET, "-o", "json", check=False).stdout
    data = json.loads(text).get("data", {}) if text else {}
    return {name: base64.b64decode(value) for name, value in data.items()}


def may(pools: Pools, verb: str, what: str) -> bool:
    account = f"system:serviceaccount:{pools.namespace}:{ACCOUNT}"
    return pools.kubectl("auth", "can-i", verb, what, f"--as={account}", check=False).stdout.strip() == "yes"


def test_keys_are_made_once_stay_through_deaths_and_rotations_and_are_in_no_log(
    pools: Pools, controller: Controller
) -> None:
    pools.kubectl("delete", "secret", SECRET, "--ignore-not-found")
    pools.create(cacheNamespaces=SPACES)
    pools.wait_objects()
    made = wait_for("the keys", lambda: entries(pools), SECONDS)
    assert made.keys() == {PUBLIC, UMBRELLA}
    assert len({parse_keys(file) for file in made.values()}) == 2

    pools.create("second", cacheNamespaces=[{"name": "public"}])
    more = wait_for("a second pool's key", lambda: len(entries(pools)) == 3 and entries(pools), SECONDS)
    assert {name: more[name] for name in made} == made
    controller.kill()
    rotated = base64.b64encode(b"n" * 32) + b"\n" + made[PUBLIC]
    change = {"data": {PUBLIC: base64.b64encode(rotated).decode(), UMBRELLA: None}}
    pools.kubectl("patch", "secret", SECRET, "--type=merge", "-p", json.dumps(change))
    controller.start()
    after = wait_for("the lost key", lambda: UMBRELLA in entries(pools) and entries(pools), SECONDS)
    assert after[PUBLIC] == rotated and after[UMBRELLA] != made[UMBRELLA]

    log = controller.log_file.read_text()
    assert UMBRELLA in log
    for file in (*more.values(), *after.values()):
        for line in file.decode().split():
            assert line not in log and base64.b64encode(file).decode() not in log
    told = json.dumps(pools.pool()) + pools.document()
    assert not any(line in told for file in after.values() for line in file.decode().split())
    pools.kubectl("delete", "secret", SECRET)


def test_of_all_secrets_the_controller_may_read_and_change_that_one_alone(pools: Pools) -> None:
    allowed = {verb: may(pools, verb, f"secrets/{SECRET}") for verb in ("get", "patch", "delete", "update")}
    assert allowed == {"get": True, "patch": True, "delete": False, "update": False}
    assert not any(
        may(pools, verb, what) for verb in ("get", "list", "watch", "patch") for what in ("secrets", "secrets/acme")
    )


def test_a_secret_of_that_name_that_is_somebody_elses_is_left_alone(pools: Pools) -> None:
    pools.kubectl("create", "secret", "generic", SECRET, "--from-literal=mine=1")
    pools.create(cacheNamespaces=[{"name": "public"}])
    found = pools.wait_condition("Ready", "False", "NameTaken")
    assert "left alone" in found["message"]
    assert entries(pools) == {"mine": b"1"}
    pools.kubectl("delete", "secret", SECRET)
    wait_for("the key", lambda: entries(pools).keys() == {PUBLIC}, SECONDS)
    pools.kubectl("delete", "secret", SECRET)
