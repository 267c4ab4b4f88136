"""The plan for the webhook's certificates over time: at no moment is a leaf shown that is not trusted."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from kvpool_operator.certificates.authority import BACKDATE, read_pair
from kvpool_operator.certificates.peers import PeerSettings, plan_peers
from kvpool_operator.certificates.plan import Plan, Settings, plan

SETTINGS = Settings("kvpool-system", "kvpool-webhook", "injector.kvpool.io", extra_names=("127.0.0.1",))
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def trusts(bundle: bytes, leaf: bytes, at: datetime) -> bool:
    """As a TLS client of that time sees it."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(at).build_server_verifier(
        x509.DNSName("kvpool-webhook.kvpool-system.svc")
    )  # fmt: skip
    try:
        verifier.verify(x509.load_pem_x509_certificate(leaf), [])
    except VerificationError:
        return False
    return True


def first(now: datetime = START) -> Plan:
    return plan(now, {}, {}, SETTINGS)


def after(before: Plan, now: datetime, settings: Settings = SETTINGS) -> Plan:
    return plan(now, before.authorities, before.leaf, settings)


def test_from_nothing_an_authority_and_a_leaf_of_it() -> None:
    made = first()
    assert sorted(made.authorities) == ["authority-1.crt", "authority-1.key"]
    assert sorted(made.leaf) == ["ca.crt", "tls.crt", "tls.key"]
    assert made.leaf["ca.crt"] == made.bundle == made.authorities["authority-1.crt"]
    assert trusts(made.bundle, made.leaf["tls.crt"], START)
    assert not trusts(first().bundle, made.leaf["tls.crt"], START)
    assert (made.authority_expires, made.leaf_expires) == (START + 1095 * DAY, START + 90 * DAY)
    assert made.next_change == START + timedelta(minutes=10)


def test_what_is_good_is_kept() -> None:
    made = first()
    for later in (timedelta(0), timedelta(minutes=11), 59 * DAY):
        assert after(made, START + later).leaf == made.leaf
        assert after(made, START + later).authorities == made.authorities


def test_the_leaf_is_made_anew_when_a_third_of_its_life_is_left() -> None:
    made = first()
    again = after(made, START + 60 * DAY)
    assert again.leaf != made.leaf and again.authorities == made.authorities
    assert again.leaf_expires == START + 150 * DAY
    assert trusts(made.bundle, again.leaf["tls.crt"], START + 60 * DAY)


def test_an_authority_is_trusted_before_it_signs_and_after_it_has_signed() -> None:
    old = after(first(), START + 729 * DAY)
    begun = START + 730 * DAY
    both = after(old, begun)
    assert both.bundle == old.bundle + both.authorities["authority-2.crt"]
    assert trusts(old.bundle, both.leaf["tls.crt"], begun)
    settled = begun + SETTINGS.settle
    assert both.next_change == settled
    assert after(both, settled - timedelta(seconds=1)).leaf["tls.crt"] == both.leaf["tls.crt"]
    new = after(both, settled)
    assert not trusts(old.bundle, new.leaf["tls.crt"], settled)
    # the new leaf under the bundle of before, and the old leaf, still shown somewhere, under the new one
    assert trusts(both.bundle, new.leaf["tls.crt"], settled)
    assert trusts(new.bundle, old.leaf["tls.crt"], settled)
    gone = after(new, START + 1095 * DAY)
    assert sorted(gone.authorities) == ["authority-2.crt", "authority-2.key"]
    assert trusts(gone.bundle, gone.leaf["tls.crt"], START + 1095 * DAY)


def test_ten_years_with_a_look_once_a_week_and_files_that_arrive_a_week_late() -> None:
    """The bundle and the leaf may each be the present or the former one, in every combination."""
    now, before = START, first()
    leaves, authorities = {before.leaf["tls.crt"]}, set(before.authorities)
    while now < START + 3650 * DAY:
        now += 7 * DAY
        current = after(before, now)
        for bundle in {before.bundle, current.bundle}:
            for leaf in {before.leaf["tls.crt"], current.leaf["tls.crt"]}:
                assert trusts(bundle, leaf, now)
        leaves.add(current.leaf["tls.crt"])
        authorities |= set(current.authorities)
        before = current
    assert (len(authorities) // 2, len(leaves) > 50) == (5, True)


def test_after_a_long_absence_all_begins_anew() -> None:
    later = START + 2000 * DAY
    anew = after(first(), later)
    assert sorted(anew.authorities) == ["authority-1.crt", "authority-1.key"]
    assert trusts(anew.bundle, anew.leaf["tls.crt"], later)


@pytest.mark.parametrize("broken", ["authority-1.crt", "authority-1.key"])
def test_a_damaged_authority_is_replaced(broken: str) -> None:
    made = first()
    anew = plan(START, {**made.authorities, broken: b"x"}, made.leaf, SETTINGS)
    assert anew.authorities != made.authorities
    assert trusts(anew.bundle, anew.leaf["tls.crt"], START)


@pytest.mark.parametrize("broken", [{"tls.crt": b"x"}, {"tls.key": b"x"}, {"tls.key": b""}])
def test_a_damaged_leaf_is_replaced_and_the_authority_kept(broken: dict[str, bytes]) -> None:
    made = first()
    anew = plan(START, made.authorities, {**made.leaf, **broken}, SETTINGS)
    assert anew.authorities == made.authorities
    assert trusts(made.bundle, anew.leaf["tls.crt"], START)


def test_a_key_of_another_pair_counts_as_damaged() -> None:
    made, other = first(), first()
    assert read_pair(made.leaf["tls.crt"], other.leaf["tls.key"]) is None
    assert read_pair(made.leaf["tls.crt"], made.leaf["tls.key"]) is not None


def test_another_name_of_the_service_makes_another_leaf() -> None:
    made = first()
    moved = after(made, START, Settings("elsewhere", "kvpool-webhook", "injector.kvpool.io"))
    assert moved.authorities == made.authorities
    names = x509.load_pem_x509_certificate(moved.leaf["tls.crt"]).extensions
    alternative = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.DNSName) == [
        "kvpool-webhook.elsewhere.svc",
        "kvpool-webhook.elsewhere",
        "kvpool-webhook",
        "kvpool-webhook.elsewhere.svc.cluster.local",
    ]


def test_a_leaf_never_outlives_its_authority() -> None:
    short = Settings("n", "s", "w", authority_life=60 * DAY, leaf_life=90 * DAY)
    made = plan(START, {}, {}, short)
    assert made.leaf_expires == made.authority_expires == START + 60 * DAY
    assert x509.load_pem_x509_certificate(made.leaf["tls.crt"]).not_valid_before_utc == START - BACKDATE


def test_no_plan_shows_a_key() -> None:
    made, peers = first(START), plan_peers(START, {}, "c", PeerSettings("kvpool-system"), lambda _: False)
    for shown in (repr(made), str(made), repr(peers), str(peers), repr(peers.signer)):
        assert "PRIVATE KEY" not in shown and "BEGIN CERTIFICATE" in shown
