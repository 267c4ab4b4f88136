"""Why a pod can't join: the answer of any rule of the injector that stands against it."""


class Refused(Exception):  # noqa: N818 (no error: an answer, turned into a Skip)
    """The pod can't join; `reason` is a word of the contract's table."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
