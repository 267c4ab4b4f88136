"""Why RDMA is not used, as an exception: a word of the contract's table, and what was seen."""


class RdmaError(Exception):
    """`reason`: a word of kvpool_contract.reasons; `detail`: for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail
