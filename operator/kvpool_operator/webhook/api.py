"""The questions that the webhook has for the API server: its version, the pools, one pool; and for the signer whose a
token is, and what a pod is labelled.

Asked over aiohttp rather than with the Kubernetes client, which would triple the webhook's memory for them.
"""

import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import aiohttp

from kvpool_contract.names import API_GROUP

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 500
LIST_SECONDS, GET_SECONDS, WATCH_SECONDS = 30.0, 1.0, 300
IDENTITY_SECONDS = 3.0
SILENT_SECONDS = 150.0  # of a watch: the server says each minute, by a bookmark, that it is still there
_LONGEST_EVENT = 4 * 2**20
_POOLS = f"apis/{API_GROUP}/v1alpha1"


class ApiError(OSError):
    """The API server can't be reached, or does not answer as it should; the message says which."""


@dataclass(frozen=True)
class ApiServer:
    """Where the API server is, and the files with the account's token and the authority of the server. The token is
    read for every question, since the kubelet replaces it every hour; the authority again when the server's certificate
    is not trusted."""

    url: str
    token_file: Path = ACCOUNT / "token"
    authority_file: Path = ACCOUNT / "ca.crt"

    @classmethod
    def of_the_cluster(cls) -> "ApiServer":
        """The API server of the pod that this runs in; raises ApiError elsewhere."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ApiError("this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set); give --api-server")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


class Client:
    """Asks over one session; to be used in the loop that it is made in."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        try:
            self._trust = ssl.create_default_context(cafile=server.authority_file)
        except (OSError, ssl.SSLError) as error:
            raise ApiError(f"{server.authority_file} holds no authority of the API server: {error}") from None
        connector = aiohttp.TCPConnector(ssl=self._trust)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=_LONGEST_EVENT, trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def version(self) -> tuple[int, int]:
        """Major and minor; raises ApiError."""
        document = await self._get("version", {}, LIST_SECONDS)
        try:
            return int(document["major"]), int(str(document["minor"]).rstrip("+"))
        except (KeyError, ValueError):
            raise ApiError("/version names no version") from None

    async def pools(self) -> tuple[list[dict[str, Any]], str]:
        """All pools, and the point from which to watch; raises ApiError."""
        found: list[dict[str, Any]] = []
        query = {"limit": str(PAGE)}
        while True:
            page = await self._get(f"{_POOLS}/kvcachepools", query, LIST_SECONDS)
            metadata = page.get("metadata") or {}
            found += page.get("items") or []
            if not metadata.get("continue"):
                return found, str(metadata.get("resourceVersion") or "")
            query = {"limit": str(PAGE), "continue": str(metadata["continue"])}

    async def pool(self, k8s_namespace: str, name: str) -> dict[str, Any] | None:
        """One pool, None where there is none; raises ApiError, after a second at the latest."""
        path = f"{_POOLS}/namespaces/{quote(k8s_namespace, safe='')}/kvcachepools/{quote(name, safe='')}"
        return await self._get(path, {}, GET_SECONDS, absent=True) or None

    async def review_token(self, token: str, audience: str) -> dict[str, Any]:
        """The status of the token's review; raises ApiError, which says nothing of the token."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        timeout = aiohttp.ClientTimeout(total=IDENTITY_SECONDS)
        url = f"{self._server.url}/apis/authentication.k8s.io/v1/tokenreviews"
        try:
            async with self._session.post(url, json=review, headers=self._headers(), timeout=timeout) as response:
                if response.status != 201:
                    raise ApiError(f"/tokenreviews: {response.status}")
                document = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._doubt(error)
            raise ApiError(f"/tokenreviews: {type(error).__name__}") from None
        status = document.get("status") if isinstance(document, dict) else None
        return status if isinstance(status, dict) else {}

    async def pod_metadata(self, k8s_namespace: str, name: str) -> dict[str, Any] | None:
        """None where there is no such pod; raises ApiError."""
        path = f"api/v1/namespaces/{quote(k8s_namespace, safe='')}/pods/{quote(name, safe='')}"
        accept = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
        found = await self._get(path, {}, IDENTITY_SECONDS, absent=True, headers=accept)
        return found.get("metadata") or None

    async def watch(self, since: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Changes as (ADDED, MODIFIED, DELETED or BOOKMARK, object) until the server ends it; raises ApiError."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=LIST_SECONDS, sock_read=SILENT_SECONDS)
        try:
            async with self._session.get(
                f"{self._server.url}/{_POOLS}/kvcachepools", params=query, headers=self._headers(), timeout=timeout
            ) as response:
                await _check(response)
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(f"the watch ended: {event['object'].get('message')}")
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            self._doubt(error)
            raise ApiError(f"the watch broke off: {error!r}") from None

    async def _get(
        self,
        path: str,
        query: dict[str, str],
        seconds: float,
        *,
        absent: bool = False,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.get(
                f"{self._server.url}/{path}", params=query, headers={**self._headers(), **headers}, timeout=timeout
            ) as response:
                if absent and response.status == 404:
                    return {}
                await _check(response)
                document = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._doubt(error)
            raise ApiError(f"/{path}: {error!r}") from None
        if not isinstance(document, dict):
            raise ApiError(f"/{path}: the answer is no object")
        return document

    def _doubt(self, error: Exception) -> None:
        """Trusts also what the file with the authority says now, where the server's certificate was refused."""
        if isinstance(error, aiohttp.ClientSSLError):
            with contextlib.suppress(OSError):  # an SSLError is one: half a file; the next question tries again
                self._trust.load_verify_locations(self._server.authority_file)

    def _headers(self) -> dict[str, str]:
        try:
            token = self._server.token_file.read_text().strip()
        except OSError as error:
            raise ApiError(f"{self._server.token_file} can't be read: {error.strerror}") from None
        return {"Authorization": f"Bearer {token}", "Accept": "application/json"}


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = (await response.content.read(300)).decode(errors="replace")
        raise ApiError(f"{response.url.path}: {response.status} {text}")
