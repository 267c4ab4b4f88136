"""Why RDMA is not used, as an exception: a word of the contract's table, and what was seen."""

# said by the other side, or by the way to it; whatever else goes wrong is this side's own
THEIRS = frozenset(
    ("rdma_peer_without", "rdma_refused", "rdma_unreachable", "rdma_late", "rdma_tag", "rdma_connection_lost")
)


class RdmaError(Exception):
    """`reason`: a word of kvpool_contract.reasons; `detail`: for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail

    @property
    def theirs(self) -> bool:
        """Whether the other side is to be left alone for it."""
        return self.reason in THEIRS
