"""The reasons why blocks don't come from the external store, or don't get there."""

from kvpool_contract.reason import Reason

STORE_REASONS = (
    Reason(
        "store_failed",
        "The external store held the block and did not bring it, or what it brought was not what was written.",
        "See the store's state in kvpool status and `store_damaged_objects`; such an object is removed.",
    ),
    Reason(
        "store_unreachable",
        "The external store, which may hold the block, can't be connected to.",
        "Look at the server, at spec.store.url, and at network policies between the pods and it; the agent tries again "
        "by itself.",
    ),
    Reason(
        "store_untrusted",
        "The external store's certificate is by no authority that the agent trusts, or for another name.",
        "Put the authority's certificate into the entry ca.crt of the Secret of spec.store.secretName, or the name for "
        "which the server's own certificate is into spec.store.url.",
    ),
    Reason(
        "store_slow",
        "The external store did not answer in time, so it is left alone for now.",
        "Look at the server's load and at the network to it; the agent tries again by itself.",
    ),
    Reason(
        "store_refused",
        "The external store does not let the agent in, or not do what it must.",
        "Correct the Secret of spec.store.secretName, or the server's rules for that user.",
    ),
    Reason(
        "store_full",
        "The external store has no room, so nothing is written there for a minute.",
        "Raise the server's memory limit or set its policy to one that evicts, or the bucket's quota; or lower "
        "spec.store.ttlSeconds.",
    ),
    Reason(
        "store_error",
        "The external store returned an error.",
        "See the detail in the agent's status and the server's log; the agent tries again by itself.",
    ),
)
