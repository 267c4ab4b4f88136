"""README's section on installing, word by word, from an empty cluster."""

import json
from pathlib import Path

from standin_engine import prompt

from cluster import readme
from cluster.chart import CONTROLLER, NAMESPACE, WEBHOOK, Chart
from cluster.engines import Member
from cluster.images import ENGINE_IMAGE
from cluster.kube import Kube, wait_for
from cluster.standins import Served, ask, wait_can_load, wait_known, wait_probed

BLOCKS = 8


def test_what_readme_says_installs_kvpool_and_two_replicas_share_and_a_third_joins_warm(
    chart: Chart, reader: Path
) -> None:
    install, *rest = readme.commands("Install")
    assert install.startswith("helm install kvpool helm/kvpool -n kvpool-system ")
    assert list(readme.files("Install")) == ["pool.yaml", "chat.yaml"]
    assert chart.deployment(CONTROLLER)["status"]["readyReplicas"] == 1
    wait_for("both webhooks", lambda: chart.deployment(WEBHOOK)["status"].get("readyReplicas") == 2, 60)

    llm = Kube(chart.provided, "llm")
    try:
        for command in rest:
            said = chart.shell(command, reader)
        assert command == "kubectl get kvp chat -n llm"
        assert said.splitlines()[1].split()[0] == "chat"

        # joined by the label alone, and started as written
        documents = json.loads(llm.kubectl("get", "pods", "-o", "json").stdout)["items"]
        assert len(documents) == 2
        for document in documents:
            (engine,) = document["spec"]["containers"]
            assert (engine["image"], engine["args"]) == (
                ENGINE_IMAGE.removeprefix("docker.io/"),
                ["--model", "HuggingFaceTB/SmolLM2-135M-Instruct"],
            )
            assert "command" not in engine
            assert [c["name"] for c in document["spec"]["initContainers"]] == ["kvpool-client", "kvpool-agent"]

        first, second = (Member(pod, llm) for pod in llm.pods("app=chat"))
        wait_probed([first, second], "alone", "same")
        assert ask(first.pod.address, prompt("p", BLOCKS)) == Served(computed=BLOCKS)
        wait_for("the first replica's blocks", lambda: first.status().arena.blocks == BLOCKS, 30)
        second.wait_for_blocks(first, BLOCKS)
        wait_known(second, prompt("p", BLOCKS))
        assert ask(second.pod.address, prompt("p", BLOCKS)) == Served(pool=BLOCKS)

        llm.scale("chat", 3)
        chart.shell("kubectl rollout status deployment/chat -n llm", reader)
        (third,) = (Member(p, llm) for p in llm.pods("app=chat") if p.name not in (first.pod.name, second.pod.name))
        status = third.status()
        assert (status.state, status.warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
        wait_can_load(third, prompt("p", BLOCKS))
        assert ask(third.pod.address, prompt("p", BLOCKS)) == Served(pool=BLOCKS)

        def row() -> bool:
            return chart.shell(rest[-1], reader).splitlines()[1].split()[:4] == ["chat", "Ready", "3/3", "1/3"]

        wait_for("the pool's row", row, 60)
    finally:
        llm.kubectl("delete", "deployment,kvp", "--all", "--wait=false", check=False)
        llm.kubectl("delete", "namespace", "llm", "--wait=false", check=False)
    assert NAMESPACE == "kvpool-system"
