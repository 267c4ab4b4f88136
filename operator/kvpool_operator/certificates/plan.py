"""Which certificates there have to be now: a function of the time and of what the two Secrets hold.

An authority is followed by the next one when a third of its life is left. From then on both stand in the bundle, and
the old one stays there until it expires. The new one begins to sign only some time after it was made, so that every
API server trusts it before the webhook shows a leaf of it. A leaf is made anew when a third of its life is left, when
its names are others, or when another authority signs. So at no moment does a webhook show what an API server doesn't
trust, however late the files of either arrive.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kvpool_operator.certificates.authority import Pair, issued, names_of, new_authority, new_leaf, read_pair

CERTIFICATE, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"
_AUTHORITY = re.compile(r"authority-(\d{1,6})\.crt")


@dataclass(frozen=True)
class Settings:
    """`k8s_namespace` and `service`: where the webhook is reached. `webhook`: name of its
    MutatingWebhookConfiguration. `extra_names`: further names and addresses of the leaf. Lives and `settle` (how long
    a new authority is only trusted) as durations."""

    k8s_namespace: str
    service: str
    webhook: str
    authority_secret: str = "kvpool-webhook-authority"  # noqa: S105 (its name)
    leaf_secret: str = "kvpool-webhook-certificate"  # noqa: S105 (its name)
    extra_names: tuple[str, ...] = ()
    authority_life: timedelta = timedelta(days=3 * 365)
    leaf_life: timedelta = timedelta(days=90)
    settle: timedelta = timedelta(minutes=10)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the leaf; API servers use the first."""
        name = f"{self.service}.{self.k8s_namespace}"
        return f"{name}.svc", name, self.service, f"{name}.svc.cluster.local", *self.extra_names


@dataclass(frozen=True)
class Plan:
    """The data that the two Secrets shall hold, the bundle, and when the certificates in use expire. `next_change`:
    when the plan will be another one by the time alone."""

    authorities: dict[str, bytes] = field(repr=False)
    leaf: dict[str, bytes] = field(repr=False)
    bundle: bytes
    authority_expires: datetime
    leaf_expires: datetime
    next_change: datetime


def plan(now: datetime, authorities: dict[str, bytes], leaf: dict[str, bytes], settings: Settings) -> Plan:
    """What has to be, from what is; what is good is kept as it is."""
    known = kept_authorities(now, authorities, f"kvpool webhook {settings.k8s_namespace}", settings.authority_life)
    pairs = [pair for _, pair in known]
    signer = next((pair for pair in reversed(pairs) if pair.made + settings.settle <= now), pairs[0])
    current = read_pair(leaf.get(CERTIFICATE), leaf.get(KEY))
    if (
        current is None
        or not issued(current.parsed, signer.parsed)
        or names_of(current) != set(settings.names)
        or renewal(current, settings.leaf_life) <= now
    ):
        current = new_leaf(signer, settings.names, now, settings.leaf_life)
    bundle = b"".join(pair.certificate for pair in pairs)
    changes = [renewal(pairs[-1], settings.authority_life), renewal(current, settings.leaf_life)]
    changes += [pair.expires for pair in pairs] + [pair.made + settings.settle for pair in pairs]
    return Plan(
        authorities=written(known),
        leaf={CERTIFICATE: current.certificate, KEY: current.key, BUNDLE: bundle},
        bundle=bundle,
        authority_expires=pairs[-1].expires,
        leaf_expires=current.expires,
        next_change=min(change for change in changes if change > now),
    )


def kept_authorities(now: datetime, data: Mapping[str, bytes], name: str, life: timedelta) -> list[tuple[int, Pair]]:
    """The authorities that a Secret holds, numbered, the oldest first; followed by a new one where it is time."""
    known = _read_authorities(data, now)
    if not known or renewal(known[-1][1], life) <= now:
        number = known[-1][0] + 1 if known else 1
        known.append((number, new_authority(f"{name} {number}", now, life)))
    return known


def written(known: list[tuple[int, Pair]]) -> dict[str, bytes]:
    """As they stand in a Secret."""
    return {
        f"authority-{number}.{end}": data
        for number, pair in known
        for end, data in (("crt", pair.certificate), ("key", pair.key))
    }


def _read_authorities(data: Mapping[str, bytes], now: datetime) -> list[tuple[int, Pair]]:
    """Those that can be used and have not expired, the oldest first."""
    found = []
    for name in data:
        if match := _AUTHORITY.fullmatch(name):
            pair = read_pair(data[name], data.get(f"authority-{match[1]}.key"))
            if pair is not None and pair.expires > now:
                found.append((int(match[1]), pair))
    return sorted(found, key=lambda entry: entry[0])


def renewal(pair: Pair, life: timedelta) -> datetime:
    """When a third of the life is left: of the whole life that it was given, which may be cut by its authority's."""
    return pair.expires - min(life, pair.expires - pair.made) / 3
