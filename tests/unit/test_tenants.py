"""Keys of cache namespaces: key files, keys for one use, claims; and the agent's keyring over real files."""

import base64
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tenant_keys import sign_claim

from kvpool_agent import keyring
from kvpool_agent.keyring import Keyring
from kvpool_contract.config import AgentConfig, CacheNamespace, ConfigError, Members, Tls, decode_config, encode_config
from kvpool_contract.tenants import (
    ClaimError,
    KeyFileError,
    check_claim,
    key_for,
    parse_keys,
    slab_id,
)

KEY, OLDER, GATEWAY = bytes(range(32)), b"o" * 32, b"g" * 32
NOW = 1_700_000_000


def text(*keys: bytes) -> bytes:
    return b"\n".join(base64.b64encode(key) for key in keys) + b"\n"


VECTORS = json.loads((Path(__file__).parent / "vectors" / "tenants.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["keys"], ids=lambda v: v["use"])
def test_keys_for_one_use_are_as_other_builds_make_them(vector: dict[str, str]) -> None:
    assert key_for(bytes.fromhex(vector["key"]), vector["use"]).hex() == vector["made"]


@pytest.mark.parametrize("vector", VECTORS["slabs"], ids=lambda v: v["cache_namespace"])
def test_slabs_are_called_as_other_builds_call_them(vector: dict[str, str]) -> None:
    assert slab_id(bytes.fromhex(vector["fingerprint"]), vector["cache_namespace"]).hex() == vector["id"]


@pytest.mark.parametrize("vector", VECTORS["claims"], ids=lambda v: v["name"])
def test_claims_are_as_other_builds_sign_them(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key"])
    assert sign_claim(key, vector["pool"], vector["name"], vector["expires"]) == vector["claim"]
    assert check_claim([key], vector["pool"], vector["claim"], vector["expires"] - 1) == vector["name"]


def test_a_key_file_holds_one_key_or_two() -> None:
    assert parse_keys(text(KEY)) == (KEY,)
    assert parse_keys(text(KEY, OLDER)) == (KEY, OLDER)
    assert parse_keys(base64.b64encode(b"k" * 64)) == (b"k" * 64,)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "it has 0 keys"),
        (text(KEY, OLDER, b"x" * 32), "it has 3 keys"),
        (b"secret-but-no-base64!", "no base64"),
        (base64.b64encode(b"k" * 31), "31 bytes; use 32 to 64"),
        (base64.b64encode(b"k" * 65), "65 bytes; use 32 to 64"),
        (text(KEY, KEY), "both keys are the same"),
    ],
)
def test_another_file_is_refused_by_a_sentence_without_its_content(data: bytes, sentence: str) -> None:
    with pytest.raises(KeyFileError, match=sentence) as refusal:
        parse_keys(data)
    for part in data.split():
        assert part.decode() not in str(refusal.value)


def test_a_claim_holds_for_its_pool_its_name_and_its_time_alone() -> None:
    claim = sign_claim(GATEWAY, "chat", "acme", NOW + 60)
    assert check_claim([OLDER, GATEWAY], "chat", claim, NOW) == "acme"
    _, name, expires, mac = claim.split(".")
    forged = {
        "claim_forged": [
            claim.replace("acme", "umbrella"),
            f"kvpool1.{name}.{int(expires) + 1}.{mac}",
            claim[:-1] + ("0" if claim[-1] != "0" else "1"),
            claim[:-1],
            sign_claim(OLDER, "chat", "acme", NOW + 60),
            sign_claim(GATEWAY, "other", "acme", NOW + 60),
        ],
        "claim_expired": [sign_claim(GATEWAY, "chat", "acme", NOW)],
        "claim_too_long": [sign_claim(GATEWAY, "chat", "acme", NOW + 3601)],
        "claim_malformed": [
            "", "acme", ".", "...", "kvpool1.acme.x." + mac, f"kvpool2.{name}.{expires}.{mac}", claim + ".",
            f"kvpool1.Acme.{expires}.{mac}", f"kvpool1.{name}.-5.{mac}", f"kvpool1.{name}.{'9' * 600}.{mac}",
            f"kvpool1.{name}.{expires}.é", f"kvpool1.{name}.²³.{mac}", "x" * 10_000,
        ],
    }  # fmt: skip
    for word, claims in forged.items():
        for one in claims:
            with pytest.raises(ClaimError) as refusal:
                check_claim([GATEWAY], "chat", one, NOW)
            assert refusal.value.word == word, one
    with pytest.raises(ClaimError, match="claim_forged"):
        check_claim([], "chat", claim, NOW)


# -- the configuration -------------------------------------------------------------------------------


def config(folder: Path, *names: str, **fields: Any) -> AgentConfig:
    spaces = tuple(
        CacheNamespace(name=name, keyFile=str(folder / name), memoryPercent=20 if i else 0)
        for i, name in enumerate(names)
    )
    members, tls = Members(file=str(folder / "members")), Tls(mode="Disabled")
    sizes = {"version": 1, "pool": "chat", "arenaBytes": 1 << 30}
    return AgentConfig(**sizes, members=members, tls=tls, cacheNamespaces=spaces, **fields)  # type: ignore[arg-type]


def test_what_is_written_is_read_again_and_what_is_unknown_is_named(tmp_path: Path) -> None:
    written = config(tmp_path, "public", "acme", requestNamespace="Signed", gatewayKeyFile="/g")
    assert decode_config(encode_config(written).encode()).config == written
    document = json.loads(encode_config(written))
    document["cacheNamespaces"][1]["later"] = 1
    assert decode_config(json.dumps(document).encode()).unknown_fields == ("cacheNamespaces[1].later",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cacheNamespaces": [{"name": "a", "keyFile": ""}]}, "cacheNamespaces[0].keyFile: it is empty"),
        ({"cacheNamespaces": [{"name": "A", "keyFile": "f"}]}, "cacheNamespaces[0]: 'A' is taken, or no name"),
        ({"cacheNamespaces": [{"name": "a", "keyFile": "f", "memoryPercent": 1}]}, "use 0 for the first"),
        ({"cacheNamespaces": [{"name": "a", "keyFile": "f"}, {"name": "b", "keyFile": "f"}]}, "1 to 95 for others"),
        (
            {
                "cacheNamespaces": [
                    {"name": "a", "keyFile": "f"},
                    {"name": "b", "tenant": "a", "keyFile": "f", "memoryPercent": 1},
                ]
            },
            "cacheNamespaces[1]: 'a' is taken",
        ),
        (
            {
                "cacheNamespaces": [{"name": "a", "keyFile": "f"}]
                + [{"name": f"b{i}", "keyFile": "f", "memoryPercent": 48} for i in range(2)]
            },
            "above 95 in all",
        ),
        ({"requestNamespace": "signed"}, "'signed' is none of Ignore"),
        ({"requestNamespace": "TrustGateway"}, "there are no cacheNamespaces"),
        ({"gatewayKeyFile": "f"}, "it goes with requestNamespace Signed"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    document = json.loads(encode_config(config(tmp_path))) | change
    with pytest.raises(ConfigError) as refusal:
        decode_config(json.dumps(document).encode())
    assert sentence in str(refusal.value)


# -- the keyring -------------------------------------------------------------------------------------


def test_a_key_file_that_comes_later_or_changes_is_taken_over_and_one_that_goes_or_breaks_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ring = Keyring(config(tmp_path, "public", "acme"))
    public, acme = ring.spaces
    assert (public.open, acme.open, public.problem) == (False, False, "No such file or directory")
    (tmp_path / "public").write_bytes(text(KEY))
    ring.look()
    assert (public.open, acme.open, public.problem) == (True, False, "")
    first = public.names
    assert first == (key_for(KEY, "block names"),) and public.proofs == (key_for(KEY, "entitlement"),)

    (tmp_path / "public").write_bytes(text(OLDER, KEY))
    ring.look()
    assert public.names == (key_for(OLDER, "block names"), *first)
    (tmp_path / "public").write_bytes(text(OLDER)[:-3])
    ring.look()
    assert len(public.names) == 2 and "bytes" in public.problem + " bytes"
    assert public.problem
    (tmp_path / "public").unlink()
    ring.look()
    assert len(public.names) == 2 and public.problem == "No such file or directory"
    (tmp_path / "public").write_bytes(text(OLDER))
    ring.look()
    assert (len(public.names), public.problem) == (1, "")

    told = caplog.text + repr(vars(ring)) + repr(ring.spaces)
    for key in (KEY, OLDER, key_for(KEY, "block names"), key_for(OLDER, "entitlement")):
        assert (
            key.hex() not in told and base64.b64encode(key).decode() not in caplog.text and repr(key) not in caplog.text
        )


@pytest.mark.parametrize("mounted", ["", "keys", "former", "both"])
def test_keys_of_a_pod_that_an_earlier_version_has_injected_are_found_where_it_has_mounted_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: str
) -> None:
    """There alone: where the present folder is mounted the former one, where the engine may write, does not count."""
    for name, key in (("keys", KEY), ("former", OLDER)):
        monkeypatch.setattr(keyring, f"{'FORMER_' * (name == 'former')}KEYS_FOLDER", str(tmp_path / name))
        if mounted in (name, "both"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "public").write_bytes(text(key))
    ring = Keyring(config(tmp_path / "keys", "public"))
    found = {"": (), "former": (OLDER,)}.get(mounted, (KEY,))
    assert ring.default.names == tuple(key_for(key, "block names") for key in found)
    if mounted == "both":
        (tmp_path / "keys" / "public").unlink()
        assert Keyring(config(tmp_path / "keys", "public")).default.names == ()


def test_a_pod_holds_the_default_one_and_those_that_it_may(tmp_path: Path) -> None:
    made = config(tmp_path, "public", "acme", "umbrella")
    assert [space.name for space in Keyring(made, ("acme",)).spaces] == ["public", "acme"]
    assert [space.name for space in Keyring(made, ()).spaces] == ["public"]
    assert [space.name for space in Keyring(made).spaces] == ["public", "acme", "umbrella"]
    assert Keyring(made, ()).requested == {"public": "public", "acme": "acme", "umbrella": "umbrella"}
    named = dataclasses.replace(made.cacheNamespaces[1], tenant="acme-inc")
    assert Keyring(dataclasses.replace(made, cacheNamespaces=(made.cacheNamespaces[0], named))).requested == {
        "public": "public",
        "acme-inc": "acme",
    }


def test_without_cache_namespaces_there_is_one_without_a_key() -> None:
    ring = Keyring()
    assert (ring.keyed, ring.default.open, ring.default.names, len(ring.spaces)) == (False, True, (b"",), 1)
