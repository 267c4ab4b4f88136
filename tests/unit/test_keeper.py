"""This member's certificate over time: from files, from a signer, renewed, kept while nobody answers, told apart."""

import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from authority import DAY, Authority, member_uri, write_identity
from cryptography import x509

from kvpool_agent.identity import sources
from kvpool_agent.identity.credentials import Problem, read_credentials
from kvpool_agent.identity.keeper import Keeper
from kvpool_agent.identity.sources import Files, Managed, SignerPlace
from kvpool_contract import identity
from kvpool_contract.identity import CertificateName, SignAnswer, bundle_digest
from kvpool_contract.status import Tls

OWN = CertificateName("demo", "demo", "chat", "a-uid")
URI = member_uri("chat", "a-uid")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def files(folder: Path, authority: Authority, uri: str = URI, **leaf: Any) -> None:
    write_identity(folder, *authority.leaf(uri, **leaf), authority.certificate)


def keeper(source: sources.Source) -> Keeper:
    made = Keeper("Files", source, OWN)
    made.look()
    return made


# -- files ---------------------------------------------------------------------------------------------


def test_files_are_read_and_read_again_when_they_change(tmp_path: Path, authority: Authority) -> None:
    files(tmp_path, authority)
    made = keeper(Files(tmp_path))
    first = made.credentials
    digest = bundle_digest(authority.certificate)
    told = made.snapshot()
    assert (told.state, told.reason, told.name, told.bundle, told.authority) == ("ok", "", URI, digest, digest)
    made.look()
    assert made.credentials is first
    files(tmp_path, authority)
    made.look()
    assert made.credentials is not first and made.snapshot().renewals == 1
    other = Authority("another")
    (tmp_path / "ca.crt").write_bytes(authority.certificate + other.certificate)
    made.look()
    told = made.snapshot()
    assert (told.bundle, told.authority, told.renewals) == (
        bundle_digest(other.certificate + authority.certificate), digest, 1
    )  # fmt: skip


def breaks(folder: Path, authority: Authority, how: str) -> str:
    """Spoils the folder; the end of the sentence that tells of it."""
    match how:
        case "gone":
            (folder / "tls.key").unlink()
            return "tls.key can't be read: No such file or directory"
        case "no certificate":
            (folder / "tls.crt").write_bytes(b"nothing")
            return "certificate: it can't be read; it must be PEM"
        case "no key":
            (folder / "tls.key").write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            return "key: it can't be read; it must be PEM without a password"
        case "another key":
            (folder / "tls.key").write_bytes(authority.leaf(URI)[1])
            return "key: it is not the certificate's; both must be of the same pair"
        case "no authority":
            (folder / "ca.crt").write_bytes(b"")
            return "authorities: there is no PEM certificate in the text"
        case "another authority":
            (folder / "ca.crt").write_bytes(Authority("another").certificate)
            return f"tls.crt: it is by none of the authorities in {folder / 'ca.crt'}"
        case "no name":
            write_identity(folder, *authority.leaf(), authority.certificate)
            return "certificate: it has 0 names that begin with kvpool://, and needs exactly one"
    raise AssertionError(how)


@pytest.mark.parametrize(
    "how", ["gone", "no certificate", "no key", "another key", "no authority", "another authority", "no name"]
)
@pytest.mark.parametrize("before", [False, True])
def test_files_that_break_are_named_once_and_the_last_ones_stay(
    tmp_path: Path, authority: Authority, how: str, before: bool
) -> None:
    files(tmp_path, authority)
    made = Keeper("Files", Files(tmp_path), OWN)
    if before:
        made.look()
    sentence = breaks(tmp_path, authority, how)
    for _ in range(3):
        made.look()
    told = made.snapshot()
    assert (told.state, told.reason) == ("ok" if before else "no_certificate", "certificate_files")
    assert told.detail.endswith(sentence) and told.failures == {"certificate_files": 1}
    assert (made.credentials is not None) is before
    files(tmp_path, authority)
    made.look()
    assert (made.snapshot().state, made.snapshot().reason) == ("ok", "")


@pytest.mark.parametrize("uri", [member_uri("other", "a-uid"), member_uri("chat", "b-uid"), "kvpool://demo/controller",
                                 member_uri("chat", "a-uid", cluster="c")])  # fmt: skip
def test_a_certificate_of_another_never_comes_into_force(tmp_path: Path, authority: Authority, uri: str) -> None:
    files(tmp_path, authority, uri)
    told = keeper(Files(tmp_path)).snapshot()
    assert told == Tls(
        "Files", "no_certificate", "certificate_name", f"the certificate is {uri}, and must be {URI}",
        failures={"certificate_name": 1},
    )  # fmt: skip


def test_a_certificate_of_the_pool_serves(tmp_path: Path, authority: Authority) -> None:
    files(tmp_path, authority, "kvpool://demo/ns/demo/pool/chat")
    assert keeper(Files(tmp_path)).snapshot().state == "ok"


def test_the_end_of_a_certificate_is_told_and_a_clock_that_is_behind(tmp_path: Path, authority: Authority) -> None:
    now = datetime.now(UTC)
    found = {}
    for name, begin, life in [
        ("fresh month", now, 30 * DAY), ("a month's last week", now - 24 * DAY, 30 * DAY),
        ("half a day before that week", now - 22.5 * DAY, 30 * DAY),
        ("fresh day", now, DAY), ("a day's second half", now - DAY / 2 - DAY / 24, DAY),
        ("ended", now - 2 * DAY, DAY), ("not begun", now + DAY, 2 * DAY),
    ]:  # fmt: skip
        files(tmp_path, authority, begin=begin, life=life)
        told = keeper(Files(tmp_path)).snapshot()
        found[name] = told.state, told.reason
    assert found == {
        "fresh month": ("ok", ""),
        "half a day before that week": ("ok", ""),
        "a month's last week": ("expires_soon", "certificate_expires_soon"),
        "fresh day": ("ok", ""),
        "a day's second half": ("expires_soon", "certificate_expires_soon"),
        "ended": ("expired", "certificate_expired"),
        "not begun": ("ok", "clock_behind"),
    }


# -- the signer ----------------------------------------------------------------------------------------


class Signing:
    """A signer's answers, in this process; `problem` is raised instead."""

    def __init__(self, authority: Authority) -> None:
        self.authority, self.problem, self.uri, self.life = authority, None, URI, DAY
        self.begin: datetime | None = None
        self.asked: list[tuple[str, str, str]] = []

    def __call__(self, address: str, trusted: bytes, pool: str, token: str, request: bytes, _: float) -> SignAnswer:
        self.asked.append((address, pool, token))
        if self.problem is not None:
            raise self.problem
        csr = x509.load_pem_x509_csr(request)
        assert csr.is_signature_valid and not list(csr.subject) and not list(csr.extensions)
        leaf = self.authority.sign(csr.public_key(), self.uri, begin=self.begin, life=self.life)  # type: ignore[arg-type]
        return SignAnswer(1, leaf.decode(), self.authority.certificate.decode())


class Member:
    """A managed member's source and keeper; its clock goes when the test says so."""

    def __init__(self, folder: Path, signing: Signing, kept: int) -> None:
        (folder / "token").write_text("secret-token\n")
        (folder / "signer-ca.crt").write_bytes(b"signer's")
        self.time = 100.0
        self.place = SignerPlace("signer:443", "chat", folder, folder)
        self.source = Managed(self.place, kept, signing, lambda: self.time)
        self.keeper = Keeper("Managed", self.source, OWN)

    def look(self, later: float = 0.0) -> Tls:
        self.time += later
        self.keeper.look()
        return self.keeper.snapshot()


@pytest.fixture
def kept() -> Iterator[int]:
    descriptor = os.memfd_create("kept")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def signing(authority: Authority) -> Signing:
    return Signing(authority)


def test_a_certificate_is_asked_for_once_and_outlives_the_worker(tmp_path: Path, signing: Signing, kept: int) -> None:
    member = Member(tmp_path, signing, kept)
    assert member.look().state == "ok"
    for _ in range(10):
        member.look(60.0)
    assert signing.asked == [("signer:443", "chat", "secret-token")]
    signing.problem = Problem("signer_unreachable", "down")
    again = Member(tmp_path, signing, kept)
    assert again.look().state == "ok"
    assert again.keeper.credentials == member.keeper.credentials
    assert len(signing.asked) == 1


def test_half_a_life_is_renewed_and_the_old_one_goes_on_while_the_signer_is_away(
    tmp_path: Path, signing: Signing, kept: int
) -> None:
    signing.begin = datetime.now(UTC) - DAY * 0.6
    member = Member(tmp_path, signing, kept)
    first = member.look()
    assert first.state == "expires_soon"
    signing.problem = Problem("signer_unreachable", "down")
    told = member.look(31.0)
    assert (told.state, told.reason, told.detail) == ("expires_soon", "signer_unreachable", "down")
    assert member.keeper.credentials is not None and told.not_after == first.not_after
    signing.problem, signing.begin = None, None
    told = member.look(2.0)
    assert (told.state, told.reason, told.renewals) == ("ok", "", 1)
    assert told.failures == {"signer_unreachable": 1}


@pytest.mark.parametrize("chance", [0.0, 0.999])
@pytest.mark.parametrize(("part", "renewed"), [(0.44, False), (0.5, True)])
def test_a_certificate_is_renewed_shortly_before_half_its_life_is_over(
    tmp_path: Path, signing: Signing, kept: int, chance: float, part: float, renewed: bool
) -> None:
    signing.begin = datetime.now(UTC) - DAY * part
    member = Member(tmp_path, signing, kept)
    member.source._chance = chance
    member.look()
    member.look(31.0)  # the pause after a certificate is over
    assert len(signing.asked) == 1 + renewed


def test_a_newcomer_keeps_trying_with_growing_pauses(tmp_path: Path, signing: Signing, kept: int) -> None:
    signing.problem = Problem("signer_refused", "the signer refuses: other_pool: It is not in the pool.")
    member = Member(tmp_path, signing, kept)
    tried = []
    for _ in range(200):
        before = len(signing.asked)
        told = member.look(1.0)
        if len(signing.asked) > before:
            tried.append(member.time)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert pauses == sorted(pauses) and pauses[0] <= 3 and 30 <= pauses[-1] <= 46
    assert (told.state, told.reason) == ("no_certificate", "signer_refused")
    assert told.failures == {"signer_refused": len(tried)} and "secret-token" not in told.detail
    assert not member.keeper.wait(0.0)
    signing.problem = None
    assert member.look(60.0).state == "ok" and member.keeper.wait(0.0)


def test_authorities_of_the_pools_configuration_hold_and_a_leaf_of_none_of_them_is_renewed(
    tmp_path: Path, authority: Authority, signing: Signing, kept: int
) -> None:
    member = Member(tmp_path, signing, kept)
    assert member.look().bundle == bundle_digest(authority.certificate)
    new = Authority("the next")
    (tmp_path / "peers-ca.crt").write_bytes(authority.certificate + new.certificate)
    told = member.look(1.0)
    assert told.bundle == bundle_digest(authority.certificate + new.certificate)
    assert (told.renewals, len(signing.asked)) == (0, 1)
    # the next worker has them, too
    assert Member(tmp_path, signing, kept).look().bundle == told.bundle
    (tmp_path / "peers-ca.crt").write_bytes(new.certificate)
    signing.authority = new
    member.look(31.0)
    told = member.look(31.0)
    assert (told.bundle, told.authority, told.renewals) == (bundle_digest(new.certificate),) * 2 + (1,)


def test_authorities_that_stay_are_not_decoded_again(
    tmp_path: Path, authority: Authority, signing: Signing, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = sources.certificates_in
    monkeypatch.setattr(sources, "certificates_in", lambda found: decoded.append(found) or decode(found))
    peers, more = tmp_path / "peers-ca.crt", authority.certificate + Authority("more").certificate
    peers.write_bytes(authority.certificate)
    member = Member(tmp_path, signing, kept)
    member.look()
    before = len(decoded)
    for _ in range(3):
        member.look(1.0)
    assert len(decoded) == before
    peers.write_bytes(more)
    for _ in range(3):
        told = member.look(1.0)
    assert (decoded[before:], told.bundle) == ([more], bundle_digest(more))


def test_authorities_that_cannot_be_used_are_named_once_and_the_last_ones_stay(
    tmp_path: Path, authority: Authority, signing: Signing, kept: int
) -> None:
    member = Member(tmp_path, signing, kept)
    peers = tmp_path / "peers-ca.crt"
    peers.write_bytes(authority.certificate)
    before = member.look()
    peers.write_bytes(b"spoilt")
    for _ in range(3):
        told = member.look(1.0)
    assert (told.state, told.reason, told.bundle) == ("ok", "certificate_files", before.bundle)
    assert told.detail == f"{peers}: authorities: there is no PEM certificate in the text"
    assert told.failures == {"certificate_files": 1}
    peers.write_bytes(authority.certificate)
    assert member.look(1.0) == msgspec.structs.replace(before, failures={"certificate_files": 1})
    peers.unlink()
    assert member.look(1.0).bundle == before.bundle
    peers.write_bytes(authority.certificate + Authority("more").certificate)
    told = member.look(1.0)
    assert (told.reason, told.bundle == before.bundle) == ("", False)
    # nor do they keep a newcomer from its certificate: the signer tells authorities, too
    peers.write_bytes(b"spoilt again")
    os.ftruncate(kept, 0)
    newcomer = Member(tmp_path, signing, kept)
    assert (newcomer.look().state, newcomer.look().state) == ("no_certificate", "ok")
    assert newcomer.look().failures == {"certificate_files": 1}


@pytest.mark.parametrize(
    ("missing", "reason"), [("token", "token_missing"), ("signer-ca.crt", "signer_untrusted")]
)  # fmt: skip
def test_what_the_pod_lacks_is_named(tmp_path: Path, signing: Signing, kept: int, missing: str, reason: str) -> None:
    member = Member(tmp_path, signing, kept)
    (tmp_path / missing).unlink()
    told = member.look()
    assert (told.state, told.reason, signing.asked) == ("no_certificate", reason, [])
    assert missing in told.detail


def test_a_signer_that_signs_for_another_is_not_asked_without_end(tmp_path: Path, signing: Signing, kept: int) -> None:
    signing.uri = member_uri("chat", "b-uid")
    member = Member(tmp_path, signing, kept)
    assert member.look().reason == "certificate_name"
    for _ in range(29):
        member.look(1.0)
    assert len(signing.asked) == 1


def test_credentials_show_no_key(authority: Authority) -> None:
    certificate, key = authority.leaf(URI)
    assert key.decode() not in repr(read_credentials(certificate, key, authority.certificate))
    with pytest.raises(identity.IdentityError) as raised:
        read_credentials(certificate, key[:-40], authority.certificate)
    assert not any(line in str(raised.value) for line in key.decode().splitlines()[1:-1])
