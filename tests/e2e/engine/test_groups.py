"""A model with several KV-cache groups attaches, serves, and shares nothing, and says so."""

import dataclasses
import os
import subprocess
from pathlib import Path

from engine.measured import BLOCK, ask, by_source, prompt, settle
from replica import Pool, Tools

MAKE = Path(__file__).parent / "make_hybrid_model.py"


def test_a_model_with_several_groups_attaches_and_serves_without_sharing(tools: Tools, tmp_path: Path) -> None:
    model = tmp_path / "hybrid"
    subprocess.run(
        [str(tools.engine_python), str(MAKE), str(tools.model), str(model)],
        check=True,
        capture_output=True,
        env=dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1"),
    )
    pool = Pool(dataclasses.replace(tools, model=model), tmp_path / "pool", executor="uni")
    replica = pool.replica("A")
    tokens = prompt(7000, 3 * BLOCK + 5)
    try:
        replica.start_agent()
        replica.start_engine()
        replica.wait_engine()
        replica.wait_ready()
        first = ask(replica, tokens)
        assert first.tokens == by_source(computed=3 * BLOCK + 5)
        replica.forget_all()
        again = ask(replica, tokens)
        assert again.tokens == by_source(computed=3 * BLOCK + 5)
        assert again.answer == first.answer
        status = settle(replica)
        assert len(status["format_fields"]["groups"]) > 1
        assert (status["state"], status["reason"]) == ("Ready(degraded)", "groups_unsupported")
        assert status["attached"]
        assert status["arena"]["blocks"] == 0
        assert status["transfers"] == {}
        assert list(status["misses"]) == ["groups_unsupported"]
        assert status["misses"]["groups_unsupported"] > 0
    finally:
        pool.stop()
