"""What the status of a pool has: the types from which its definition is made."""

from typing import Annotated, Any, Literal

import msgspec

MAX_FORMATS = 16

Phase = Literal["Pending", "Ready", "Paused", "Degraded"]
ConditionType = Literal[
    "ConfigValid",
    "Configured",
    "CertificatesReady",
    "TransportReady",
    "StoreReady",
    "PrefixesDeclared",
    "AgentsReady",
    "AgentsUpdated",
    "Beneficial",
    "CacheWarm",
    "Faithful",
    "Ready",
]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


def _field(description: str, **bounds: Any) -> msgspec.Meta:
    return msgspec.Meta(description=description, **bounds)


class Condition(_Part, frozen=True):
    """One thing that holds or not."""

    type: Annotated[ConditionType, _field("What it is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], _field("Whether it holds.")]
    reason: Annotated[str, _field("A word for machines.", max_length=128)]
    message: Annotated[str, _field("A sentence for people, with what to do.", max_length=4096)]
    last_transition_time: Annotated[str, _field("When `status` last changed.", max_length=32)]
    observed_generation: Annotated[int, _field("The generation of the pool that this was said of.")]


class HitPercent(_Part, frozen=True):
    """Of the prompt blocks of all finished requests since each agent's start, the part that was found."""

    local: Annotated[int, _field("Found, and once computed by the same replica.", ge=0, le=100)]
    shared: Annotated[int, _field("Found, and computed by another replica.", ge=0, le=100)]
    total: Annotated[int, _field("Found, by whomever computed.", ge=0, le=100)]


class FormatCount(_Part, frozen=True):
    """Members of one format. Members share blocks within a format only."""

    format: Annotated[str, _field("First digits of the format's fingerprint.", max_length=64)]
    members: Annotated[int, _field("Members that have it.", ge=0)]


class PoolStatus(_Part, frozen=True):
    """The pool as it is seen. Counts and percentages are rounded, and written only when they change."""

    observed_generation: Annotated[int, _field("The generation of the pool that this was said of.")]
    phase: Annotated[
        Phase,
        _field(
            "Pending: no member is ready yet. Ready: all is well, though members may still start or warm up. "
            "Paused: as the spec says. Degraded: something needs a person, in a paused pool, too; the Ready condition "
            "says what."
        ),
    ]
    ready: Annotated[str, _field("Members whose agent is ready, of all members.", max_length=24)]
    warm: Annotated[str, _field("Members that hold their hot set, of all members.", max_length=24)]
    configured: Annotated[
        str, _field("Members whose agent has taken over the present configuration, of all members.", max_length=24)
    ] = ""
    tls: Annotated[
        str,
        _field(
            "How members prove who they are: Managed, Secret, or Disabled, which sends all in clear.", max_length=16
        ),
    ] = ""
    certificates_expire: Annotated[
        str,
        _field(
            "When the first of the members' certificates ends, rounded down to the hour. Those of mode Managed are "
            "renewed when half of their life is over, those of a Secret by whoever writes it.",
            max_length=32,
        ),
    ] = ""
    hit_percent: HitPercent | None = None
    formats: Annotated[
        list[FormatCount],
        _field("Formats of the attached engines, the most frequent first.", max_length=MAX_FORMATS),
    ] = []
    conditions: Annotated[
        list[Condition],
        _field(
            "ConfigValid: the spec is accepted. Configured: every agent that answers has taken over the present "
            "configuration, and none needs a new pod for it. CertificatesReady: every agent that answers has a "
            "certificate, and all bytes between members are encrypted, but for those of RDMA where it is allowed. "
            "TransportReady, with the type RDMA: every agent that answers has an RDMA device in use. "
            "StoreReady, with spec.store: every agent that answers reaches the external store, and can write there. "
            "PrefixesDeclared, with the policy Declared: every agent that answers knows the blocks of all prefixes. "
            "AgentsReady: every member's agent answers, is ready and reaches the others. "
            "Beneficial, once requests have loaded: sharing saves more time than it costs, as measured. "
            "Faithful, once a hit was compared with computing: no member has seen others' blocks change its answer. "
            "AgentsUpdated, with the strategy InPlace: every agent runs the pool's "
            "image. CacheWarm: every member holds its hot set. Ready: the phase is Ready.",
            max_length=16,
        ),
    ] = []
