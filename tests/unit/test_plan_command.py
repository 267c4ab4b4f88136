"""`kvpool plan` from its options to a pool: what it says on traffic made for it, and what it refuses in a sentence."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from kvpool_cli.main import main
from kvpool_operator.desired.pool import read_pool

REPOSITORY = Path(__file__).resolve().parents[2]
CRD = yaml.safe_load((REPOSITORY / "crds" / "kvcachepools.kvpool.io.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
# 1000 tokens a second against 100 MB/s of 1000 bytes a token: loading is a hundred times faster
FAST = ("--bytes-per-token", "1000", "--prefill-rate", "1000", "--path", "tcp=100M,0.001")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["plan", *(str(each) for each in arguments)])


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Twenty documents of forty blocks behind one common beginning, asked about by chance, and new prompts beside."""
    draw, path = random.Random(4), tmp_path / "documents.jsonl"
    lines = []
    for number in range(400):
        of_one = draw.randrange(20) * 1000 + 1000
        blocks = [1, *range(of_one, of_one + 40), 10**6 + number] if number % 4 else [10**7 + number]
        kind = "rag" if number % 4 else "new"
        lines.append({"timestamp": 5000 * number, "input_length": 16 * len(blocks), "hash_ids": blocks, "class": kind})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def plan(path: Path, *options: str) -> dict[str, Any]:
    done = run("--trace", path, "--block-tokens", "16", *options, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_plan_says_for_each_class_what_to_do_and_the_pool_is_one(documents: Path) -> None:
    told = plan(documents, "--routing", "round-robin", *FAST, "--arena", "32M", "--pool", "chat", "-n", "team-a")
    said = {each["class"]: each["verdict"] for each in told["verdicts"]}
    assert said == {"new": "local is enough", "rag": "share"}
    pool = told["pool"]
    jsonschema.validate(pool, SCHEMA)
    accepted = read_pool(pool)
    assert (accepted.metadata.name, accepted.metadata.namespace) == ("chat", "team-a")
    assert accepted.spec.tiers.memory.size >= told["arenaBytes"] > 0
    assert accepted.spec.prewarm.max_bytes >= told["newcomers"]["hotSetBytes"] > 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**pool, "spec": {"tiers": {"memory": {"size": "1Gi", "eviction": "MRU"}}}}, SCHEMA)


def test_rates_add_up_and_are_those_of_the_tokens(documents: Path) -> None:
    told = plan(documents, "--routing", "round-robin", "--replicas", "2", *FAST)
    (row,) = told["routings"]
    fleet = row["sharing"]
    assert told["seconds"] == 399 * 5
    assert fleet["readBytesPerSecond"]["mean"] == pytest.approx(
        fleet["farHitRate"] * fleet["tokens"] * 1000 / told["seconds"], rel=0.01
    )
    assert fleet["nearHitRate"] + fleet["farHitRate"] < told["idealTokenHitRate"] + 1e-3
    for place in ("mean", "worst"):
        parts = [fleet[f"{name}BytesPerSecond"][place] for name in ("read", "write", "total")]
        assert parts[0] + parts[1] == pytest.approx(parts[2], abs=2) and parts[0] > 0
    assert fleet["totalBytesPerSecond"]["worst"] > fleet["totalBytesPerSecond"]["mean"]
    assert row["alone"]["farHitRate"] == 0 and row["alone"]["nearHitRate"] < fleet["nearHitRate"] + fleet["farHitRate"]


def test_a_way_that_is_too_slow_is_no_reason_to_share(documents: Path) -> None:
    slow = ("--bytes-per-token", "1000", "--prefill-rate", "1000", "--path", "tcp=1M,0.001")
    told = plan(documents, "--routing", "round-robin", *slow)
    verdict = next(each for each in told["verdicts"] if each["class"] == "rag")
    assert verdict["verdict"] == "local is enough" and "computing them is sooner than loading" in verdict["reason"]
    assert told["pool"] is None and told["routings"][0]["sharing"]["farHitRate"] == 0
    assert told["breakEven"][0]["break_even_bytes_per_second"] == pytest.approx(1e6, rel=0.01)


def test_routing_goes_before_sharing_where_it_saves_as_much(documents: Path) -> None:
    told = plan(documents, "--routing", "round-robin", "--routing", "prefix-affine", *FAST)
    verdict = next(each for each in told["verdicts"] if each["class"] == "rag")
    assert (verdict["verdict"], told["pool"]) == ("route instead", None)


def test_the_text_has_the_same_and_the_pool_can_be_applied(documents: Path, tmp_path: Path) -> None:
    done = run("--trace", documents, "--block-tokens", "16", "--routing", "round-robin", *FAST)
    assert done.exit_code == 0, done.output
    assert "rag: share. " in done.stdout and "new: local is enough. " in done.stdout
    assert "Over tcp (0.10 GB/s) loading is sooner than computing from 2 tokens on." in done.stdout
    (tmp_path / "pool.yaml").write_text(done.stdout.partition("The pool to apply:\n\n")[2])
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "pool.yaml")])
    assert checked.stdout.startswith("pool planned in namespace default: the spec is accepted")


def test_without_costs_there_is_no_verdict(documents: Path) -> None:
    done = run("--trace", documents, "--block-tokens", "16", "--routing", "round-robin")
    assert "For a verdict say what computing and loading cost" in done.stdout and "share." not in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--path", "tcp=1G"), "say what computing takes with --prefill-rate or --prefill"),
        (("--prefill-rate", "9"), "computing is known, loading is not; add --path"),
        (("--prefill-rate", "9", "--prefill", "1=1", "--path", "t=1"), "--prefill-rate and --prefill say the same"),
        (("--prefill", "x=1", "--path", "t=1"), "--prefill x=1: write TOKENS=SECONDS, such as 4096=0.14"),
        (("--prefill", "5=1", "--prefill", "5=2", "--path", "t=1"), "no length comes twice"),
        (("--prefill-rate", "9", "--path", "tcp=fast"), "'fast' is no quantity"),
        (("--prefill-rate", "9", "--path", "tcp=1,x"), "the seconds behind the comma are no number"),
        (("--prefill-rate", "9", "--path", "=1"), "it needs a name"),
        (("--arena", "1"), "--arena 1: it has no room for one block of 2097152 bytes; raise it"),
        (("--engine-cache", "lots"), "--engine-cache lots: 'lots' is no quantity"),
    ],
)
def test_options_that_do_not_fit_are_refused(documents: Path, options: tuple[str, ...], sentence: str) -> None:
    done = run("--trace", documents, "--block-tokens", "16", "--routing", "round-robin", *options)
    assert done.exit_code == 2 and sentence in done.stderr
