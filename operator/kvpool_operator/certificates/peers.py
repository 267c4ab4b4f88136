"""Which authority the peers of all pools trust, and which one signs: a function of the time, of a Secret and of what
agents have said.

An authority is followed by the next one when a third of its life is left. From then on agents are to trust both; the
new one is only trusted until every live agent of every pool has reported that it does, and signs from then on. So no
member ever shows a certificate that another one refuses. An agent that stays silent holds the change up until it is
gone, or until the old authority has a week left: then the pool's other members matter more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kvpool_operator.certificates.authority import Pair, read_pair
from kvpool_operator.certificates.plan import BUNDLE, CERTIFICATE, KEY, kept_authorities, renewal, written

CLUSTER = "cluster"  # entry of the Secret: the name of the cluster in certificates


@dataclass(frozen=True)
class PeerSettings:
    """`secret`: in the operator's own namespace. `life`: of an authority. `settle`: how long a new one is only trusted
    at least, since a pod that starts may be given files of a moment ago. `last_call`: what is left of the old one when
    nobody is waited for any more."""

    k8s_namespace: str
    secret: str = "kvpool-peers-authority"  # noqa: S105 (its name)
    life: timedelta = timedelta(days=3 * 365)
    settle: timedelta = timedelta(minutes=2)
    last_call: timedelta = timedelta(days=7)


@dataclass(frozen=True)
class PeerPlan:
    """The data that the Secret shall hold, what peers trust, and who signs. `pending`: another authority waits to
    sign. `expires`: of the newest authority. `next_change`: when the plan will be another one by the time alone."""

    secret: dict[str, bytes] = field(repr=False)
    bundle: bytes
    signer: Pair
    pending: bool
    expires: datetime
    next_change: datetime


def plan_peers(
    now: datetime,
    secret: Mapping[str, bytes],
    cluster: str,
    settings: PeerSettings,
    trusted: Callable[[bytes], bool],
) -> PeerPlan:
    """What has to be, from what is. trusted: whether every live agent has reported that it trusts this bundle."""
    known = kept_authorities(now, secret, f"kvpool peers {settings.k8s_namespace}", settings.life)
    pairs = [pair for _, pair in known]
    bundle = b"".join(pair.certificate for pair in pairs)
    newest, current = pairs[-1], read_pair(secret.get(CERTIFICATE), secret.get(KEY))
    signer = current if current in pairs else pairs[0]
    assert signer is not None
    if signer != newest:
        settled = newest.made + settings.settle <= now and trusted(bundle)
        if settled or signer.expires - settings.last_call <= now:
            signer = newest
    changes = [pair.expires for pair in pairs]
    changes += [renewal(newest, settings.life), newest.made + settings.settle, signer.expires - settings.last_call]
    return PeerPlan(
        secret={
            **written(known),
            CERTIFICATE: signer.certificate,
            KEY: signer.key,
            BUNDLE: bundle,
            CLUSTER: cluster.encode(),
        },
        bundle=bundle,
        signer=signer,
        pending=signer != newest,
        expires=newest.expires,
        next_change=min(change for change in changes if change > now),
    )
