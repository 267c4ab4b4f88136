"""The authorities of the peers over time: nobody shows what others don't trust. And what is taken from requests."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from kvpool_operator.certificates.authority import Pair, new_client, new_member
from kvpool_operator.certificates.peers import PeerPlan, PeerSettings, plan_peers
from kvpool_operator.certificates.requests import MAX_REQUEST, RequestError, requested_key

SETTINGS = PeerSettings("kvpool-system")
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
URI = "kvpool://c/ns/n/pool/p/pod/u"


def everybody(_bundle: bytes) -> bool:
    return True


def nobody(_bundle: bytes) -> bool:
    return False


def after(before: PeerPlan | None, now: datetime, trusted: Callable[[bytes], bool] = nobody) -> PeerPlan:
    return plan_peers(now, before.secret if before else {}, "c", SETTINGS, trusted)


def leaf(signer: Pair, now: datetime) -> bytes:
    return new_member(signer, ec.generate_private_key(ec.SECP256R1()).public_key(), URI, now, DAY)


def trusts(bundle: bytes, certificate: bytes, at: datetime) -> bool:
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(at).build_client_verifier()
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except VerificationError:
        return False
    return True


def test_the_first_authority_signs_at_once_and_is_kept() -> None:
    made = after(None, START)
    assert sorted(made.secret) == ["authority-1.crt", "authority-1.key", "ca.crt", "cluster", "tls.crt", "tls.key"]
    assert (made.pending, made.secret["cluster"], made.expires) == (False, b"c", START + 1095 * DAY)
    assert trusts(made.bundle, leaf(made.signer, START), START)
    assert not trusts(after(None, START).bundle, leaf(made.signer, START), START)
    for later in (MINUTE, 400 * DAY, 729 * DAY):
        assert after(made, START + later) == PeerPlan(
            made.secret, made.bundle, made.signer, False, made.expires, after(made, START + later).next_change
        )


def test_a_new_authority_signs_when_all_trust_it_and_not_before() -> None:
    old, begun = after(None, START), START + 730 * DAY
    both = after(old, begun, everybody)
    assert (both.pending, both.signer) == (True, old.signer)  # a pod that starts now may be given the files of before
    assert both.bundle == old.bundle + both.secret["authority-2.crt"]
    settled = begun + SETTINGS.settle
    asked: list[bytes] = []
    assert after(both, settled, lambda bundle: bool(asked.append(bundle))).signer == old.signer
    assert asked == [both.bundle]
    new = after(both, settled, everybody)
    assert (new.pending, new.signer.certificate) == (False, both.secret["authority-2.crt"])
    assert new.bundle == both.bundle
    assert not trusts(old.bundle, leaf(new.signer, settled), settled)
    # once it signs it goes on, whoever is silent now
    assert after(new, settled + DAY, nobody).signer == new.signer
    gone = after(new, START + 1095 * DAY, nobody)
    assert (gone.bundle, gone.signer) == (both.secret["authority-2.crt"], new.signer)


def test_a_silent_agent_is_waited_for_until_the_old_authority_has_a_week_left() -> None:
    both = after(after(None, START), START + 730 * DAY)
    last = START + (1095 - 7) * DAY
    assert after(both, last - MINUTE).signer == both.signer
    assert after(both, last - MINUTE).next_change == last
    assert after(both, last).pending is False


def test_ten_years_in_which_agents_take_over_the_bundle_with_delays() -> None:
    """Whatever leaf is shown that is a day old at most, every agent that answers trusts it."""
    now, current = START, after(None, START)
    bundles = [current.bundle] * 3  # what each of three agents trusts; the n-th takes over n weeks late
    waiting, shown, rotations = [0, 0, 0], [leaf(current.signer, now)], 0
    while now < START + 3650 * DAY:
        now += 7 * DAY
        before = current.signer
        current = after(current, now, lambda bundle: all(b == bundle for b in bundles))
        rotations += current.signer != before
        shown = [shown[-1], leaf(current.signer, now)] if current.signer == before else [leaf(current.signer, now)]
        for each in (*shown[-1:], leaf(before, now) if before.expires > now else shown[-1]):
            assert all(trusts(bundle, each, now) for bundle in bundles)
        for n in range(3):
            waiting[n] = waiting[n] + 1 if bundles[n] != current.bundle else 0
            if waiting[n] > n:
                bundles[n] = current.bundle
    assert rotations == 4


@pytest.mark.parametrize("broken", ["tls.crt", "tls.key", "authority-1.crt", "authority-1.key"])
def test_what_is_damaged_is_made_anew_and_still_fits_together(broken: str) -> None:
    made = after(None, START)
    anew = plan_peers(START + DAY, {**made.secret, broken: b"x"}, "c", SETTINGS, nobody)
    assert trusts(anew.bundle, leaf(anew.signer, START + DAY), START + DAY)
    assert (anew.signer == made.signer) == broken.startswith("tls")


# -- what is signed ----------------------------------------------------------------------------------


def request(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey) -> str:
    """With names of its own."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kvpool controller")])
    own = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("kvpool://c/controller"), x509.DNSName("evil")])
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    builder = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(own, critical=False)
    builder = builder.add_extension(constraints, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()])
def test_of_a_request_the_key_alone_is_taken(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> None:
    signer = after(None, START).signer
    made = x509.load_pem_x509_certificate(new_member(signer, requested_key(request(key)), URI, START, DAY))
    assert made.public_key() == key.public_key()
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [general.value for general in names] == [URI]
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert [a.value for a in made.subject] == ["kvpool member"]
    usages = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert (made.not_valid_before_utc, made.not_valid_after_utc) == (START - 5 * MINUTE, START + DAY)


def test_the_controllers_certificate_is_for_asking_alone() -> None:
    pair = new_client(after(None, START).signer, "kvpool://c/controller", START, DAY)
    usages = pair.parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_requests_that_are_not_signed() -> None:
    good = request(ec.generate_private_key(ec.SECP256R1()))
    lines = good.splitlines()
    der = bytearray(x509.load_pem_x509_csr(good.encode()).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM).decode()
    refused = {
        request(rsa.generate_private_key(65537, 1024)): "neither EC P-256 nor Ed25519",
        request(ec.generate_private_key(ec.SECP384R1())): "neither EC P-256 nor Ed25519",
        forged: "not signed by its own key",
        "": "can't be read",
        "\ud800": "can't be read",
        "\n".join(lines[:2] + lines[3:]): "can't be read",
        good + " " * MAX_REQUEST: "longer than",
    }
    for pem, sentence in refused.items():
        with pytest.raises(RequestError, match=sentence):
            requested_key(pem)
    requested_key(good)
