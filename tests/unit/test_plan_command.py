"""`kvpool plan` from its options to a pool: what it says on traffic made for it, and what it refuses in a sentence."""

import json
import random
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from kvpool_cli import plan_command
from kvpool_cli.engine_costs import Point, curve, measure
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


class FakeEngine:
    """Answers a completion after so many seconds of a clock that it moves: 1 ms a token where it has not seen the
    prompt, 2 ms where it has. Prompts of more than `longest` tokens are refused."""

    def __init__(self, longest: int = 600) -> None:
        self.longest, self.asked = longest, list[tuple[int, str]]()

    def __call__(self, tokens: int, salt: str) -> float | None:
        if tokens > self.longest:
            return None
        seconds = 0.002 if (tokens, salt) in self.asked else 0.001 * tokens
        self.asked.append((tokens, salt))
        return seconds


def test_an_engine_is_asked_for_new_prompts_of_doubling_length_each_twice_as_far_as_it_takes_them() -> None:
    engine = FakeEngine()
    assert measure(engine, 10_000) == [Point(n, n / 1000, 0.002) for n in (128, 256, 512)]
    assert [tokens for tokens, _ in engine.asked] == [128] + [n for n in (128, 256, 512) for _ in range(6)]
    assert [salt == again for (_, salt), (_, again) in zip(engine.asked[1::2], engine.asked[2::2], strict=True)] == [
        True
    ] * 9
    assert len({salt for _, salt in engine.asked}) == 10
    assert [point.tokens for point in measure(FakeEngine(), 300)] == [128, 256]


def test_a_longer_prompt_costs_no_less_than_a_shorter_one_however_it_was_measured() -> None:
    found = curve([Point(128, 0.2, 0.1), Point(256, 0.1, 0.1), Point(512, 0.4, 0.1)])
    assert [found.seconds(tokens) for tokens in (128, 256, 512)] == pytest.approx([0.2, 0.2, 0.4])


def test_costs_measured_at_an_engine_are_told_by_length_with_the_break_even_of_each_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(plan_command, "over_http", lambda url: asked.append(url) or FakeEngine())
    paths = ("--path", "tcp=1M,0.05", "--path", "slow=0.5M", "--bytes-per-token", "600")
    done = run("--engine", "http://engine:8000", *paths, "-o", "json")
    assert (done.exit_code, asked) == (0, ["http://engine:8000"]), done.output
    told = json.loads(done.stdout)
    assert told["breakEven"][1] == {
        "prefix_tokens": 256, "kv_bytes": 153600, "cold_prefill_ms": 256.0, "local_hit_ttft_ms": 2.0, "load_ms": 203.6,
        "break_even_bytes_per_second": round(153600 / 0.206),
    }  # fmt: skip
    assert [(each["path"], each["break_even_tokens"]) for each in told["paths"]] == [("tcp", 126), ("slow", None)]
    text = run("--engine", "http://engine:8000", *paths).stdout
    assert text.splitlines()[0].split() == [
        "PREFIX", "KV", "PREFILL", "MS", "LOCAL", "HIT", "MS", "LOAD", "MS", "BREAK-EVEN",
    ]  # fmt: skip
    assert "Over tcp (0.00 GB/s) loading is sooner than computing from 126 tokens on.\nOver slow" in text


def test_a_plan_takes_what_was_measured_at_an_engine(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_command, "over_http", lambda _url: FakeEngine())
    fast = ("--engine", "http://e:1", "--bytes-per-token", "1000", "--path", "tcp=100M,0.001")
    told = plan(documents, "--routing", "round-robin", *fast, "--arena", "32M")
    assert {each["class"]: each["verdict"] for each in told["verdicts"]} == {"new": "local is enough", "rag": "share"}
    assert told["breakEven"][0]["local_hit_ttft_ms"] == 2.0


def test_an_engine_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused = run("--engine", f"http://127.0.0.1:{port}")
    assert refused.exit_code == 2 and f"--engine http://127.0.0.1:{port}: it does not answer" in refused.stderr
    assert "give the engine's address as http://HOST:PORT" in run("--engine", "engine:8000").stderr
    assert "name recorded requests with --trace, or say what computing costs" in run().stderr


def test_without_costs_there_is_no_verdict(documents: Path) -> None:
    done = run("--trace", documents, "--block-tokens", "16", "--routing", "round-robin")
    assert "For a verdict say what computing and loading cost" in done.stdout and "share." not in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--path", "tcp=1G"), "say what computing takes: --prefill-rate, --prefill, --engine"),
        (("--prefill-rate", "9"), "computing is known, loading is not; add --path"),
        (("--prefill-rate", "9", "--prefill", "1=1", "--path", "t=1"), "--prefill-rate and --prefill say the same"),
        (
            ("--prefill-rate", "9", "--engine", "http://e:1"),
            "--prefill-rate and --engine say the same; give one of them",
        ),
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
