"""Which member takes over which block of one that leaves: chains stay together, receivers take equal parts.

A block goes where its parent goes, or lies already, so that a request finds its prompt at one place; unless that
receiver has been given many more than another one: all prompts of a service may hang on one block.
"""

from collections.abc import Collection, Mapping, Sequence

from kvpool_agent.policy.heat import HotBlock

SLACK_BLOCKS = 64  # that a receiver may be given beyond the one with the fewest, to keep a chain together


def allot(
    blocks: Sequence[HotBlock], held: Mapping[str, Collection[bytes]], receivers: Sequence[str]
) -> dict[str, list[HotBlock]]:
    """For each receiver that gets any, its blocks in the order in which they are given, best first.

    blocks: best first, parents before children. held: keys that receivers hold already."""
    shares: dict[str, list[HotBlock]] = {receiver: [] for receiver in receivers}
    goes: dict[bytes, str] = {}
    for block in blocks:
        fewest = min(receivers, key=lambda receiver: len(shares[receiver]))
        near = [goes[block.parent]] if block.parent in goes else [r for r in receivers if block.parent in held[r]]
        chosen = min(near, key=lambda receiver: len(shares[receiver]), default=fewest)
        if len(shares[chosen]) > len(shares[fewest]) + SLACK_BLOCKS:
            chosen = fewest
        goes[block.key] = chosen
        shares[chosen].append(block)
    return {receiver: share for receiver, share in shares.items() if share}
