"""An agent's status page through the API server: a port-forward to the pod's loopback address, where alone it listens.

It takes the right to create `pods/portforward`, and no network between this machine and the pod.
"""

import http.client
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from kvpool_cli.page import read_page
from kvpool_contract.names import WORKER_PORT


def get(settings: Any, k8s_namespace: str, pod: str, path: str, seconds: float, port: int = WORKER_PORT) -> bytes:
    """Body of a page of the pod. settings: the client's Configuration. Raises OSError with one sentence. May run in
    several threads at a time."""
    # Each its own: while a forward is begun, all calls of its API client are turned into websockets.
    api: Any = client.CoreV1Api(client.ApiClient(settings))
    try:
        forward: Any = portforward(
            api.connect_get_namespaced_pod_portforward, pod, k8s_namespace, ports=str(port), _request_timeout=seconds
        )
    except ApiException as error:
        raise OSError(f"it can't be reached: {' '.join(str(error.reason).split())}") from None
    connection = http.client.HTTPConnection("localhost", port, timeout=seconds)
    connection.sock = forward.socket(port)
    connection.sock.settimeout(seconds)
    try:
        return read_page(connection, path, lambda error: forward.error(port) or repr(error))
    finally:
        forward.close()
