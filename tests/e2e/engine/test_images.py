"""Equal tokens beside different images are different blocks: vLLM's own hashes of them, at a real agent."""

import json
import os
from pathlib import Path

from agent_pool import AgentPool
from engine.forged import Forge

SCRIPT = Path(__file__).parent / "hash_images.py"
BLOCKS, BEFORE = 6, 2  # of the prompt, and those of them that end before the image


def test_prompts_share_what_comes_before_their_images_and_the_rest_only_with_the_same_image(
    forge: Forge, tmp_path: Path
) -> None:
    forge.run(SCRIPT, tmp_path / "keys")
    found = {name: list(map(bytes.fromhex, keys)) for name, keys in json.loads((tmp_path / "keys").read_text()).items()}
    pool = AgentPool(tmp_path / "pool")
    try:
        node = pool.node("a").start()
        channel = node.raw_session()
        for descriptor in channel.receive().descriptors:
            os.close(descriptor)
        plain = found["plain"]
        pairs = b"".join(key + parent for key, parent in zip(plain, [bytes(36), *plain], strict=False))
        channel.send({"verb": "store", "job": 1, "rows": list(range(BLOCKS))}, pairs)
        assert channel.receive().header == {"verb": "copied", "job": 1, "whole": True, "stored": BLOCKS}
        channel.send({"verb": "commit", "job": 1})
        node.until_blocks(BLOCKS)
        hits = {}
        for number, (name, keys) in enumerate(found.items(), 1):
            channel.send({"verb": "lookup", "plan": number, "lacks": [[0, BLOCKS]], "room": BLOCKS}, b"".join(keys))
            hits[name] = channel.receive().header["hits"]
        channel.close()
        everything, before = list(range(BLOCKS)), list(range(BEFORE))
        assert hits == {"plain": everything, "same": everything, "dot": before, "none": before}
    finally:
        pool.stop()
