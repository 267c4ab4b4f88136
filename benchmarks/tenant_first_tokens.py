"""Whether the time to a first token tells one tenant of a real engine what another one has asked it.

    python benchmarks/tenant_first_tokens.py [--rounds 120]

One vLLM engine on the CPU (a small model with random weights) and its agent; two tenants with cache namespaces of their
own. In each round one of them asks a new prompt of five blocks, and the other one, in an order drawn anew, as soon as
the agent holds that:

    another's    the prompt that the first tenant has asked
    nobody's     one that nobody has asked
    nobody's too the same once more (A/A)
    its own      one that it has asked itself before: what would show if one could tell

How two ways are compared, and what power is: telling.py.
"""

import argparse
import base64
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import rounds  # noqa: E402
import telling  # noqa: E402
from engine.forged import FOLDER, NO_BLOCK, Forge, ForgedEngine  # noqa: E402
from engine.measured import BLOCK, small_prompt  # noqa: E402
from replica import MIB, Pool, Replica, Tools, WaitError, wait_for  # noqa: E402

from kvpool_client.front import CLAIM  # noqa: E402

BLOCKS = 5
LENGTH = BLOCKS * BLOCK + 5
WAYS = ("another's", "nobody's", "nobody's too", "its own")
COMPARED = (("nobody's", "nobody's too"), ("nobody's", "another's"), ("nobody's", "its own"))
WARM_UP = 3  # rounds
STORE_SECONDS = 2.0
MOST_ROUNDS = 130  # whose blocks all stay in the arena
FIRST, SECOND = "acme", "umbrella"


class Tenants:
    """Both of them, at one engine."""

    def __init__(self, replica: Replica, engine: ForgedEngine) -> None:
        self._replica, self._engine = replica, engine
        self._asked = 0

    def prompt(self) -> list[int]:
        self._asked += 1
        return small_prompt(self._asked, LENGTH)

    def ask(self, tenant: str, prompt: list[int], **expected: int) -> float:
        """Seconds until the first token. expected: tokens of the prompt by source."""
        began = time.perf_counter()
        self._engine.begin(prompt, parameters={CLAIM: tenant}, answer_tokens=1)
        answer = self._engine.answer()
        taken = time.perf_counter() - began
        self._engine.begin(NO_BLOCK)
        self._engine.answer()
        found = {source: tokens for source, tokens in answer.tokens.items() if tokens}
        assert found == expected, (tenant, found, expected)
        return taken

    def round(self, order: list[str]) -> dict[str, float]:
        """Seconds by way; empty where the agent does not hold the first tenant's prompt in time."""
        held, own = self._blocks(), self.prompt()
        prompts = dict(zip(WAYS, (self.prompt(), self.prompt(), self.prompt(), own), strict=True))
        self.ask(FIRST, prompts["another's"], computed=LENGTH)
        self.ask(SECOND, own, computed=LENGTH)
        taken: dict[str, float] = {}
        if not self._stored(held + 2 * BLOCKS):
            return taken
        for way in order:
            cached = {"device": BLOCKS * BLOCK, "computed": 5} if way == "its own" else {"computed": LENGTH}
            taken[way] = self.ask(SECOND, prompts[way], **cached)
        self._stored(held + (len(WAYS) + 1) * BLOCKS)
        return taken

    def _stored(self, blocks: int) -> bool:
        """Whether the agent comes to hold so many."""
        try:
            return wait_for("they are stored", lambda: self._blocks() >= blocks, STORE_SECONDS, 0.01)
        except WaitError:
            return False

    def _blocks(self) -> int:
        """That the agent has stored, of all cache namespaces."""
        return sum(space["blocks"] for space in self._replica.status()["cache_namespaces"])


def agent(folder: Path) -> dict[str, Any]:
    """Fields of the agent's configuration."""
    for i, name in enumerate(("public", FIRST, SECOND)):
        (folder / f"key-{name}").write_bytes(base64.b64encode(bytes([i]) * 32))
    spaces = [
        {"name": name, "keyFile": str(folder / f"key-{name}"), "memoryPercent": percent}
        for name, percent in (("public", 0), (FIRST, 20), (SECOND, 70))
    ]
    return {"arenaBytes": 2048 * MIB, "cacheNamespaces": spaces, "requestNamespace": "TrustGateway"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=120, help=f"At most {MOST_ROUNDS - WARM_UP}.")
    options = parser.parse_args()
    if not 0 < options.rounds <= MOST_ROUNDS - WARM_UP:
        parser.error(f"--rounds {options.rounds}: between 1 and {MOST_ROUNDS - WARM_UP}")
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="kvpool-tenants-") as name:
        folder, tools = Path(name), Tools.prepared()
        with closing(Forge(tools, folder)) as forge:
            forge.run(FOLDER / "make_small_model.py", folder / "model", 0)
            pool = Pool(tools, folder / "pool", host_pool_bytes=64 * MIB)
            replica = pool.replica("a", agent=agent(folder))
            try:
                replica.start_agent()
                with closing(ForgedEngine(forge, replica, folder / "model")) as engine:
                    engine.until_ready()
                    tenants = Tenants(replica, engine)
                    for number, order in enumerate(rounds.orders(WAYS, options.rounds + WARM_UP)):
                        for way, seconds in tenants.round(order).items():
                            if number >= WARM_UP:
                                found[way].append(seconds)
                        if number % 50 == 0:
                            print(f"  {number} of {options.rounds + WARM_UP} rounds", flush=True)
            finally:
                pool.stop()
    print(f"{rounds.machine()}; {len(found[WAYS[0]])} prompts each way, {LENGTH} tokens each")
    telling.report(found, COMPARED, "nobody's")


if __name__ == "__main__":
    main()
