"""What a pool's status says of certificates, and when a new authority of the members may sign."""

from itertools import pairwise
from typing import Any

import pytest
from agent_status import agent

from kvpool_contract.reasons import explain
from kvpool_contract.status import Tls
from kvpool_operator.desired.adoption import Adoption
from kvpool_operator.desired.events import pool_events
from kvpool_operator.desired.status import Member, Observed, pool_status

METADATA = {"name": "chat", "namespace": "team-a", "uid": "pool-uid"}
KEY, OTHER = ("a", "chat"), ("b", "chat")


def member(
    name: str, state: str = "ok", bundle: str = "new", detail: str = "", tls: str = "Managed", reason: str = ""
) -> Member:
    said = agent(tls=Tls(tls, state, reason, bundle=bundle, detail=detail))
    return Member(name, f"{name}-uid", status=said, tls=tls)


SILENT = Member("silent", "silent-uid", error="no connection", tls="Managed")


def status(*members: Member, **seen: Any) -> dict[str, Any]:
    return pool_status("chat", 1, Observed(members, **{"tls": "Managed"} | seen), None, "2026-01-01T00:00:00Z")


def condition(*members: Member, **seen: Any) -> tuple[str, str, str]:
    found = status(*members, **seen)
    return next(
        (c["status"], c["reason"], c["message"]) for c in found["conditions"] if c["type"] == "CertificatesReady"
    )


def test_agents_without_a_certificate_are_named_with_what_they_say() -> None:
    assert condition(member("a"), SILENT) == ("True", "AllCertified", "1 of 2 agents have a certificate.")
    missing = member("b", "no_certificate", detail="the signer does not answer")
    assert condition(member("a"), missing) == (
        "False", "NoCertificate", f"1 of 2: b (the signer does not answer). {explain('no_certificate')}",
    )  # fmt: skip
    expired, soon = member("c", "expired"), member("d", "expires_soon")
    assert condition(expired, soon) == ("False", "Expired", f"1 of 2: c. {explain('certificate_expired')}")
    assert condition(member("a"), soon)[:2] == ("False", "ExpiresSoon")
    assert condition(missing, expired)[1] == "NoCertificate"
    assert condition()[1] == "NoMembers" and condition(SILENT)[1] == "NoAgentAnswers"


@pytest.mark.parametrize("word", ["clock_behind", "peer_certificate_not_yet_valid", "peer_certificate_expired"])
def test_clocks_that_differ_are_told_with_the_member_that_noticed(word: str) -> None:
    skewed = member("b", reason=word, detail="10.0.0.9:7700: its certificate is not valid by this clock")
    assert condition(member("a"), skewed) == (
        "False", "ClockSkew", f"1 of 2: b (10.0.0.9:7700: its certificate is not valid by this clock). {explain(word)}",
    )  # fmt: skip
    # a certificate that has ended by its own member's clock is that, whatever others say of it
    assert condition(member("a", "expired", reason="certificate_expired"), skewed)[1] == "Expired"
    assert condition(member("a", reason="signer_unreachable"))[:2] == ("True", "AllCertified")


@pytest.mark.parametrize("word", ["certificate_files", "certificate_name"])
def test_a_secret_that_went_bad_under_members_that_run_is_told_with_their_names(word: str) -> None:
    spoilt = [member(name, tls="Secret", reason=word, detail="tls.key can't be read") for name in ("c", "b")]
    assert condition(member("a", tls="Secret"), *spoilt, tls="Secret") == (
        "False", "CertificateNotUsed", f"2 of 3: b, c (tls.key can't be read). {explain(word)}",
    )  # fmt: skip
    # who has none at all, or one that has ended, is worse off
    missing = member("d", "no_certificate", tls="Secret", reason=word)
    assert condition(*spoilt, missing, tls="Secret")[1] == "NoCertificate"
    said = [status(member("a", tls="Secret"), *others, tls="Secret") for others in ([], spoilt, [])]
    told = [pool_events(METADATA, before, after, ()) for before, after in pairwise(said)]
    assert [[(e.type, e.reason) for e in events] for events in told] == [
        [("Warning", "CertificateNotUsed")],
        [("Normal", "CertificatesReady")],
    ]


def test_the_first_end_of_a_certificate_is_told_in_whole_hours() -> None:
    def ends(*moments: float) -> str | None:
        said = [agent(tls=Tls("Managed", "ok", not_after=moment)) for moment in moments]
        told: str | None = status(*(Member("m", "u", status=one) for one in said), SILENT).get("certificatesExpire")
        return told

    assert ends(1767229199.0, 1767315600.0) == "2026-01-01T00:00:00Z"
    assert ends(1767229200.0) == "2026-01-01T01:00:00Z"
    assert ends(1e300) == "9999-12-31T23:00:00Z"
    assert ends(0.0) is None  # a member that has none


def test_clear_text_is_shown_wherever_it_is_spoken() -> None:
    shown, reason, message = condition(member("a", tls="Disabled"), tls="Disabled")
    assert (shown, reason) == ("False", "Disabled") and "all bytes go in clear" in message
    assert status(tls="Disabled")["tls"] == "Disabled" and status(tls="Secret")["tls"] == "Secret"
    # a pod from before the pool's members had certificates
    old = member("old", tls="Disabled")
    assert condition(old, member("a"))[:2] == ("False", "InClear")
    # that is what was asked for: the pool is Ready all the same
    assert status(member("a", tls="Disabled"), tls="Disabled", document="")["phase"] == "Ready"


def test_a_rotation_that_goes_on_is_told_and_a_spec_that_cannot_be_used_says_nothing() -> None:
    assert condition(member("a"), rotating=True)[:2] == ("True", "Rotating")
    assert condition(member("a"), tls="", invalid="x")[:2] == ("False", "NotKnown")
    told = pool_events(METADATA, status(member("a")), status(member("a", "expired")), ())
    assert [(e.type, e.reason) for e in told] == [("Warning", "Expired")]
    back = pool_events(METADATA, status(member("a", "expired")), status(member("a")), ())
    assert [(e.type, e.reason) for e in back] == [("Normal", "CertificatesReady")]
    assert pool_events(METADATA, None, status(tls="Disabled"), ())[0].reason == "Disabled"


NOT_ASKED = [
    Member("bare", "1", injected=False, tls="Disabled"),
    Member("starting", "2", expected=False, tls="Managed"),
    member("files", tls="Secret", bundle="theirs"),
    member("clear", tls="Disabled", bundle=""),
]


def test_an_authority_signs_when_every_agent_of_every_pool_trusts_it() -> None:
    adoption = Adoption()
    assert adoption.complete([], "new")
    assert not adoption.complete([KEY], "new")  # nobody has looked yet
    adoption.heard(KEY, [])
    assert adoption.complete([KEY], "new")
    adoption.heard(KEY, [member("a"), member("b"), *NOT_ASKED])
    assert adoption.complete([KEY], "new") and not adoption.complete([KEY], "newer")
    assert not adoption.complete([KEY, OTHER], "new")
    adoption.heard(OTHER, [member("c", bundle="old")])
    assert not adoption.complete([KEY, OTHER], "new")
    adoption.heard(OTHER, [member("c")])
    assert adoption.complete([KEY, OTHER], "new")
    adoption.forget(OTHER)
    assert not adoption.complete([KEY, OTHER], "new") and adoption.complete([KEY], "new")


@pytest.mark.parametrize("holding", [SILENT, member("late", bundle="old"), member("unsaid", bundle="")])
def test_one_that_is_silent_or_late_holds_it_up_until_it_is_gone(holding: Member) -> None:
    adoption = Adoption()
    adoption.heard(KEY, [member("a"), holding])
    assert not adoption.complete([KEY], "new")
    adoption.heard(KEY, [member("a")])
    assert adoption.complete([KEY], "new")
