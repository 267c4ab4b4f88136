"""Which blocks get a second copy: the hottest of those that one member alone holds, as many as the bandwidth allows.

A copy costs its bytes once, and room that is given back before any other (it is a replica copy); what it saves is, when
its holder dies, the blocks' computing for each request that would have hit them, and until then half of the reads at
one member. Blocks of one format cost the same to move and to compute, so heat alone says which come first. One that was
offered is left alone for a while: its receiver had no room for it, or has let it go for something hotter.
"""

from collections.abc import Sequence

from kvpool_agent.policy.heat import HotBlock

LEAST_HEAT = 3.0  # more requests than that, of the last hour or so: two may be one user's
AGAIN_SECONDS = 600.0


class Offered:
    """Blocks that were offered of late. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._at: dict[bytes, float] = {}

    def note(self, blocks: Sequence[HotBlock], now: float) -> None:
        self._at.update((block.key, now) for block in blocks)

    def candidates(self, hottest: Sequence[HotBlock], now: float) -> list[HotBlock]:
        """Those to offer, in their order. hottest: hottest first."""
        self._at = {key: at for key, at in self._at.items() if now - at < AGAIN_SECONDS}
        return [block for block in hottest if block.heat >= LEAST_HEAT and block.key not in self._at]
