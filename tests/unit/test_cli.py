"""`kvpool inject`: manifests in and out against golden files, exit codes, and YAML as the API server reads
it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kvpool_cli import manifests
from kvpool_cli.main import NEEDS_OPERATOR, main

GOLDEN = Path(__file__).parent / "golden"
POOL, MANIFEST = GOLDEN / "pool.yaml", GOLDEN / "deployment.yaml"
COSTS = (
    "Deployment chat: host pool 2Gi in container engine (request 16Gi → 18Gi, limit 20Gi → 22Gi); agent 6680Mi, of it "
    "arena 6Gi and 536Mi for itself; each pod asks for up to 8728Mi more\n"
)


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)


def workload(name: str, labels: dict[str, str] | None = None, **metadata: str) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **metadata},
        "spec": {"template": {"metadata": {"labels": labels or {}}, "spec": {"containers": containers}}},
    }


def injected_names(result: Result) -> dict[str, bool]:
    """Every Deployment of the output, and whether it carries an agent."""
    assert result.exit_code == 0, result.output
    deployments = [d for d in yaml.safe_load_all(result.stdout) if d["kind"] == "Deployment"]
    return {d["metadata"]["name"]: "initContainers" in d["spec"]["template"]["spec"] for d in deployments}


def test_the_manifest_comes_out_joined() -> None:
    result = run("inject", "-f", MANIFEST, "--pool", POOL)
    assert (result.exit_code, result.stderr) == (0, COSTS + NEEDS_OPERATOR.format("chat") + "\n")
    assert result.stdout == (GOLDEN / "joined.yaml").read_text()


@pytest.mark.parametrize(
    ("resources", "host_pool", "said"),
    [
        ({}, {}, "container c, which has neither request nor limit of memory"),
        ({"limits": {"memory": "6Gi"}}, {}, "container c (request none → 7Gi, limit 6Gi → 7Gi); "),
        ({"limits": {"memory": "6Gi"}}, {"adjustResources": False}, "container c (memory as it was); "),
    ],
)
def test_what_joining_costs_is_said(tmp_path: Path, resources: Any, host_pool: Any, said: str) -> None:
    pool = yaml.safe_load(POOL.read_text())
    pool["spec"]["engine"] = {"hostPool": {"size": "1Gi"} | host_pool}
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool))
    given = workload("x")
    given["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    result = run("inject", "-f", "-", "--pool", tmp_path / "pool.yaml", stdin=yaml.safe_dump(given))
    assert result.exit_code == 0, result.output
    assert said in result.stderr


def test_stdin_and_another_image() -> None:
    result = run("inject", "-f", "-", "--pool", POOL, "--image", "example.test/other:2", stdin=MANIFEST.read_text())
    expected = (GOLDEN / "joined.yaml").read_text().replace("example.test/kvpool-agent:1", "example.test/other:2")
    assert result.stdout == expected


def test_a_pool_without_certificates_needs_no_operator(tmp_path: Path) -> None:
    clear = tmp_path / "pool.yaml"
    clear.write_text(POOL.read_text().replace("  tiers:", "  transport: {tls: {mode: Disabled}}\n  tiers:"))
    result = run("inject", "-f", MANIFEST, "--pool", clear)
    assert (result.exit_code, result.stderr) == (0, COSTS)
    first, *_ = yaml.safe_load_all(result.stdout)
    assert (first["kind"], list(first["data"])) == ("ConfigMap", ["agent.json"])
    assert "kvpool-identity" not in result.stdout


@pytest.mark.parametrize(
    ("options", "user", "said"), [((), None, ["rdma_ipc_lock_namespace"]), (("--privileged",), 0, [])]
)
def test_a_capability_is_written_for_namespaces_that_are_said_to_allow_it(
    tmp_path: Path, options: tuple[str, ...], user: int | None, said: list[str]
) -> None:
    asking = tmp_path / "pool.yaml"
    rdma = "{rdma: {memlock: IPCLock, allowUnencrypted: true}}"
    asking.write_text(POOL.read_text().replace("  tiers:", f"  transport: {rdma}\n  tiers:"))
    result = run("inject", "-f", MANIFEST, "--pool", asking, *options)
    assert result.exit_code == 0, result.output
    (spec,) = (d["spec"]["template"]["spec"] for d in yaml.safe_load_all(result.stdout) if d["kind"] == "Deployment")
    assert spec["initContainers"][-1]["securityContext"].get("runAsUser") == user
    assert [line.split(": ")[1] for line in result.stderr.splitlines() if "IPC_LOCK" in line] == said


def test_what_comes_out_comes_out_again() -> None:
    result = run("inject", "-f", GOLDEN / "joined.yaml", "--pool", POOL)
    assert (result.exit_code, result.stderr) == (0, COSTS + NEEDS_OPERATOR.format("chat") + "\n")
    assert list(yaml.safe_load_all(result.stdout)) == list(yaml.safe_load_all((GOLDEN / "joined.yaml").read_text()))


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "ReplicaSet", "Job"])
def test_every_kind_with_a_pod_template_joins(kind: str) -> None:
    result = run("inject", "-f", "-", "--pool", POOL, stdin=yaml.safe_dump({**workload("x"), "kind": kind}))
    assert result.exit_code == 0, result.output
    *_, last = yaml.safe_load_all(result.stdout)
    assert last["kind"] == kind
    assert [c["name"] for c in last["spec"]["template"]["spec"]["initContainers"]] == ["kvpool-client", "kvpool-agent"]


def test_a_pod_joins_as_its_own_template() -> None:
    template = workload("x")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", "labels": {"app": "x"}}}
    result = run("inject", "-f", "-", "--pool", POOL, stdin=yaml.safe_dump(pod))
    assert result.exit_code == 0, result.output
    *_, last = yaml.safe_load_all(result.stdout)
    assert (last["kind"], last["metadata"]["name"], last["metadata"]["namespace"]) == ("Pod", "x", "team-a")
    assert [c["name"] for c in last["spec"]["initContainers"]] == ["kvpool-client", "kvpool-agent"]


def test_a_pool_is_checked_offline(tmp_path: Path) -> None:
    result = run("check", POOL)
    assert (result.exit_code, result.stdout) == (0, "pool chat in namespace team-a: the spec is accepted\n")
    bad = tmp_path / "bad.yaml"
    bad.write_text(POOL.read_text().replace("size: 2Gi", "size: 2GB"))
    result = run("check", bad)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: pool field spec.engine.hostPool.size: '2GB' is no quantity; write a number with a unit, such as "
        "500Mi or 4Gi\n"
    )


def test_a_manifest_without_a_workload_is_left_alone() -> None:
    job = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: train}\n"
    result = run("inject", "-f", "-", "--pool", POOL, stdin=job)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "CronJob train: unsupported_kind: "
        "Only a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or Pod can be injected. "
        "Give the command the object that owns the pod template.\n"
    )


def test_of_several_workloads_the_labelled_one_joins() -> None:
    text = yaml.safe_dump_all([workload("gateway"), workload("engine", {"kvpool.io/pool": "chat"})])
    assert injected_names(run("inject", "-f", "-", "--pool", POOL, stdin=text)) == {
        "gateway": False,
        "engine": True,
    }


def test_of_several_workloads_without_a_label_none_is_guessed() -> None:
    text = yaml.safe_dump_all([workload("gateway"), workload("engine")])
    result = run("inject", "-f", "-", "--pool", POOL, stdin=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: the manifest holds Deployment gateway, Deployment engine; label the pod template of the "
        "engine with "
        "kvpool.io/pool: chat\n"
    )


def test_the_workload_is_in_the_pools_namespace() -> None:
    result = run("inject", "-f", "-", "--pool", POOL, stdin=yaml.safe_dump(workload("x", namespace="team-b")))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: Deployment x is in namespace team-b, the pool in team-a; give both the same metadata.namespace\n"
    )


@pytest.mark.parametrize(
    ("pool", "manifest", "sentence"),
    [
        (
            POOL.read_text().replace("tiers:", "tier:"),
            "",
            "pool field spec.tier: this version does not know it; "
            "spec has engine, tiers, store, prewarm, readiness, loading, drain, replication, canary, publication, "
            "cacheNamespaces, requestNamespace, gatewayKeySecretRef, transport, agent, paused",
        ),
        (
            "kind: KVCachePool\n",
            "",
            "pool: this is no KVCachePool of kvpool.io/v1alpha1; begin with these as kind and apiVersion",
        ),
        (
            f"{POOL.read_text()}---\n{POOL.read_text()}",
            "",
            "pool: the file holds 2 documents; write one KVCachePool into it",
        ),
        ("a: [", "", "pool: the manifest is no YAML: "),
        (POOL.read_text(), "a: [", "the manifest is no YAML: "),
        (
            POOL.read_text(),
            "kind: Deployment\nmetadata: {name: x}\n",
            "Deployment x has no spec.template; add the pod template",
        ),
        (
            POOL.read_text(),
            yaml.safe_dump(workload("x")).replace("image: i", "image: i\n        resources: {limits: {memory: 1GB}}"),
            "'1GB' is no quantity; write a number with a unit, such as 500Mi or 4Gi",
        ),
    ],
    ids=[
        "unknown-field",
        "no-version",
        "two-documents",
        "no-yaml",
        "no-manifest",
        "no-template",
        "no-quantity",
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, pool: str, manifest: str, sentence: str) -> None:
    (tmp_path / "pool.yaml").write_text(pool)
    result = run("inject", "-f", "-", "--pool", tmp_path / "pool.yaml", stdin=manifest or MANIFEST.read_text())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {sentence}")
    assert result.stderr.count("\n") == 1


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    result = run("inject", "-f", MANIFEST, "--pool", tmp_path / "none.yaml")
    assert (result.exit_code, result.stderr) == (
        2,
        f"Error: {tmp_path / 'none.yaml'} can't be read: No such file or directory\n",
    )


TEXTS = [
    "1e3",
    "12345e6",
    "8000:8000",
    "2026-01-31",
    "0o17",
    "0x1F",
    "1_000",
    "y",
    "NO",
    "on",
    "null",
    "~",
    "",
    "-m",
    "1.5",
    "+7",
    ".5",
    ".inf",
    "a: b",
    "#x",
    "two\nlines\n",
    "50m",
    "true",
    "- a",
    "{a}",
    "1.2.3",
    "é",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_written_as_a_text(text: str) -> None:
    """For any reader of YAML 1.1: read with PyYAML's resolvers, and no bare word that other readers take for
    more."""
    written = manifests.dump({"value": text})
    assert yaml.safe_load(written) == {"value": text}
    assert manifests.load(written)[0].content == {"value": text}
    quoted = written.startswith(("value: '", 'value: "', "value: |"))
    assert quoted or text in ("-m", "50m", "é")


@pytest.mark.parametrize(
    ("written", "content"),
    [
        ("8000:8000", "8000:8000"),
        ("22:22", "22:22"),
        ("2026-01-31", "2026-01-31"),
        ("0644", 420),
        ("42", 42),
        ("-1", -1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("yes", True),
        ("~", None),
        ("0x10", 16),
    ],
)
def test_a_bare_word_is_a_number_only_where_the_server_sees_one(written: str, content: object) -> None:
    assert manifests.load(f"value: {written}\n")[0].content == {"value": content}


def test_documents_keep_their_text() -> None:
    text = "# head\na: 1   # kept\n---\n\n---   # empty\n--- {b: 2}\n---\nc: |\n  ---\n  x\n"
    assert [(d.text, d.content) for d in manifests.load(text)] == [
        ("# head\na: 1   # kept\n", {"a": 1}),
        (" {b: 2}\n", {"b": 2}),
        ("c: |\n  ---\n  x\n", {"c": "---\nx\n"}),
    ]
