"""The agents of a pool and what each answers: from a file of addresses, or through the API server.

An agent tells its status to its own pod alone, so each is asked through a port-forward. One that does not answer is an
answer as well: it stands in the report with that reason.
"""

import http.client
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kvpool_cli.page import read_page
from kvpool_contract.names import POOL_LABEL
from kvpool_contract.status import AgentStatus, StatusError, decode_status

TIMEOUT_SECONDS = 3.0
PARALLEL = 8


class MembersError(Exception):
    """The members can't be told; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What one member answered: `status` and its `document` as it came, or neither and the `error`."""

    member: str
    status: AgentStatus | None = None
    document: bytes = b""
    error: str = ""


def read_file(text: str) -> list[Answer]:
    """Asks the agents whose status ports stand in `text`, one `host:port` a line."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    addresses = [line for line in lines if line]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise MembersError(f"members file: {address!r} is no address; write host:port")
    if not addresses:
        raise MembersError("members file: it names no member; write one host:port a line")
    return _ask({address: _http_get(address) for address in addresses})


def read_pool(pool: str, k8s_namespace: str, kubeconfig: str) -> list[Answer]:
    """Asks the agents of a pool's pods, which the API server lists. Raises MembersError."""
    # Imported here: the package takes a second to load, and only this way of finding members needs it.
    from kubernetes import client
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError

    try:
        settings = _settings(kubeconfig)
        namespace = k8s_namespace or context_namespace(kubeconfig)
        api: Any = client.CoreV1Api(client.ApiClient(settings))
        listed = api.list_namespaced_pod(
            namespace, label_selector=f"{POOL_LABEL}={pool}", _request_timeout=TIMEOUT_SECONDS
        )
    except (ConfigException, ApiException, HTTPError) as error:
        sentence = " ".join(str(error).split())
        raise MembersError(f"the pods of pool {pool} can't be listed: {sentence}") from None
    names: list[str] = sorted(pod.metadata.name for pod in listed.items)
    if not names:
        raise MembersError(
            f"namespace {namespace} has no pod labelled {POOL_LABEL}={pool}; check both names, and that the "
            f"workload was injected"
        )
    return _forwarded(names, namespace, settings)


def ask_pods(names: Sequence[str], k8s_namespace: str, kubeconfig: str) -> list[Answer]:
    """Asks the agents of these pods through the API server. Raises MembersError."""
    from kubernetes.config.config_exception import ConfigException

    try:
        settings = _settings(kubeconfig)
    except ConfigException as error:
        raise MembersError(f"the cluster can't be reached: {' '.join(str(error).split())}") from None
    return _forwarded(names, k8s_namespace, settings)


def context_namespace(kubeconfig: str) -> str:
    """The namespace of the user's present context. Raises the Kubernetes client's ConfigException."""
    from kubernetes import config

    contexts: Any = config.list_kube_config_contexts  # its types are not declared
    _, active = contexts(config_file=kubeconfig or None)
    return str(active["context"].get("namespace") or "default")


def _settings(kubeconfig: str) -> Any:
    from kubernetes import client, config

    load: Any = config.load_kube_config  # its types are not declared
    settings: Any = client.Configuration()
    load(config_file=kubeconfig or None, client_configuration=settings)
    return settings


def _forwarded(names: Sequence[str], k8s_namespace: str, settings: Any) -> list[Answer]:
    from kvpool_cli import forward

    def forwarded(name: str) -> Callable[[], bytes]:
        return lambda: forward.get(settings, k8s_namespace, name, "/status", TIMEOUT_SECONDS)

    return _ask({name: forwarded(name) for name in names})


def _http_get(address: str) -> Callable[[], bytes]:
    host, _, port = address.rpartition(":")

    def get() -> bytes:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_SECONDS)
        return read_page(connection, "/status")

    return get


def _ask(sources: dict[str, Callable[[], bytes]]) -> list[Answer]:
    def ask(source: tuple[str, Callable[[], bytes]]) -> Answer:
        member, get = source
        try:
            document = get()
            return Answer(member, decode_status(document), document)
        except (OSError, StatusError) as error:
            return Answer(member, error=str(error))

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(ask, sources.items()))
