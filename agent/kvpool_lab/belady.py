"""The best that any policy could do with leaves only, knowing what comes: whose next request is farthest goes first.

A block that is needed later than all that could make room for it is not taken in. Not a policy for an arena: it is what
the others are measured against.
"""

import heapq
from collections.abc import Sequence

from kvpool_lab.recorded import Request

NEVER = 2**62


def belady_tokens(requests: Sequence[Request], capacity: int, warm_up: int = 0) -> int:
    """Hit tokens, counted from the first request after the warm-up. capacity in blocks."""
    following = _following(requests)
    held: dict[int, list[int]] = {}  # block: parent, children held, next request, last request that contained it
    heap: list[tuple[int, int]] = []
    hit_tokens = 0
    for number, request in enumerate(requests):
        hits = 0
        for block, later in zip(request.blocks, following[number], strict=True):
            if block not in held:
                break
            held[block][2:] = (later, number)
            if not held[block][1]:
                heapq.heappush(heap, (-later, block))
            hits += 1
        hit_tokens += request.tokens_of(hits) if number >= warm_up else 0
        parent = request.blocks[hits - 1] if hits else -1
        for block, later in zip(request.blocks[hits:], following[number][hits:], strict=True):
            if len(held) >= capacity and not _evict_one(held, heap, number, later):
                break
            held[block] = [parent, 0, later, number]
            if parent in held and parent != block:
                held[parent][1] += 1
            heapq.heappush(heap, (-later, block))
            parent = block
    return hit_tokens


def _evict_one(held: dict[int, list[int]], heap: list[tuple[int, int]], now: int, later: int) -> bool:
    own, done = [], False
    while heap and not done:
        minus, block = heapq.heappop(heap)
        entry = held.get(block)
        if entry is None or entry[1] or entry[2] != -minus:
            continue
        if entry[3] == now:
            own.append((minus, block))
        elif -minus <= later:
            own.append((minus, block))
            break
        else:
            parent = entry[0]
            del held[block]
            if parent in held:
                held[parent][1] -= 1
                if not held[parent][1]:
                    heapq.heappush(heap, (-held[parent][2], parent))
            done = True
    for each in own:
        heapq.heappush(heap, each)
    return done


def _following(requests: Sequence[Request]) -> list[list[int]]:
    """For each block of each request the number of the next request that contains it."""
    last: dict[int, int] = {}
    found: list[list[int]] = []
    for number in range(len(requests) - 1, -1, -1):
        found.append([last.get(block, NEVER) for block in requests[number].blocks])
        last.update(dict.fromkeys(requests[number].blocks, number))
    found.reverse()
    return found
