"""The signer: a pod's token in, a day's certificate for one member of one pool out. Stateless; every webhook signs.

What the certificate says comes from the API server alone: the token's review names the pod, and the pod's label its
pool. Nothing in the request but the key is taken over. What costs little is checked first, since anybody in the
cluster may ask: the bounds, the request's form, its signature; then the API server is asked. Tokens and keys are in no
log, no metric and no answer.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from aiohttp import web

from kvpool_contract.identity import (
    AUDIENCE,
    MAX_REQUEST,
    VERSION,
    CertificateName,
    IdentityError,
    SignAnswer,
    SignRefused,
    SignRequest,
    decode_request,
    encode_document,
)
from kvpool_contract.names import POOL_LABEL
from kvpool_operator.certificates.authority import new_member
from kvpool_operator.certificates.requests import RequestError, requested_key
from kvpool_operator.webhook.api import ApiError, Client
from kvpool_operator.webhook.authority import LiveAuthority

log = logging.getLogger("kvpool.webhook")

LEAF_LIFE = timedelta(days=1)
SECONDS = 8.0  # for one request, its body included
AT_ONCE = 32
BURST, PER_SECOND, ADDRESSES = 50, 5.0, 4096  # requests of one address, and addresses that are kept in mind
_ACCOUNT = "system:serviceaccount:"
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_CODES = {
    "malformed": 400,
    "bad_csr": 400,
    "too_large": 413,
    "token_refused": 401,
    "not_bound": 401,
    "not_a_member": 403,
    "busy": 429,
    "unavailable": 503,
}
OUTCOMES = ("signed", "failed", *_CODES)
_LATER = {"busy": 2, "unavailable": 5}  # seconds until it makes sense to ask again


class RefusedError(Exception):
    """`reason`: a word of the table above; the message is a sentence for whoever asked."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Addresses:
    """How often each address asks: a bucket of BURST that fills at PER_SECOND."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Whether this address may ask now."""
        now = self._clock()
        left, since = self._left.pop(address, (float(BURST), now))
        left = min(float(BURST), left + (now - since) * PER_SECOND)
        self._left[address] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return left >= 1


class Signer:
    """`count(outcome)` is called once for each request."""

    def __init__(
        self,
        api: Client,
        authority: LiveAuthority,
        count: Callable[[str], None],
        life: timedelta = LEAF_LIFE,
    ) -> None:
        self._api, self._authority, self._count, self._life = api, authority, count, life
        self._addresses = Addresses()
        self._running = 0

    async def sign(self, request: web.Request) -> web.Response:
        """Answers a signing request; refusals say why, and for which of them to ask again."""
        try:
            answer = await self._answer(request)
        except RefusedError as refused:
            self._count(refused.reason)
            document = encode_document(SignRefused(VERSION, refused.reason, str(refused)))
            response = web.Response(status=_CODES[refused.reason], body=document, content_type="application/json")
            if refused.reason in _LATER:
                response.headers["Retry-After"] = str(_LATER[refused.reason])
            if not request.content.at_eof():  # what is left of its body is not waited for
                response.force_close()
            return response
        except Exception:
            self._count("failed")
            log.exception("a certificate can't be signed")
            return web.Response(status=500, text="a fault in kvpool's signer; its log says which\n")
        self._count("signed")
        return web.Response(body=encode_document(answer), content_type="application/json")

    async def _answer(self, request: web.Request) -> SignAnswer:
        if self._running >= AT_ONCE or not self._addresses.take(request.remote or ""):
            raise RefusedError("busy", "too many certificates are being asked for; ask again")
        self._running += 1
        try:
            async with asyncio.timeout(SECONDS):
                return await self._signed(_decoded(await _body(request)))
        except TimeoutError:
            raise RefusedError("unavailable", f"the request was not done within {SECONDS:.0f} s; ask again") from None
        finally:
            self._running -= 1

    async def _signed(self, asked: SignRequest) -> SignAnswer:
        try:
            key = requested_key(asked.csr)
        except RequestError as error:
            raise RefusedError("bad_csr", str(error)) from None
        now = datetime.now(UTC)
        authority = self._authority.at(now)
        if authority is None:
            raise RefusedError("unavailable", "there is no authority to sign with yet; the controller makes it")
        try:
            k8s_namespace, pod, uid = await self._pod_of(asked.token)
            await self._require_member(k8s_namespace, pod, uid, asked.pool)
        except ApiError:
            raise RefusedError("unavailable", "the API server does not answer; ask again") from None
        uri = CertificateName(authority.cluster, k8s_namespace, asked.pool, uid).encode()
        certificate = new_member(authority.pair, key, uri, now, self._life)
        log.info("signed for pod %s/%s of pool %s", k8s_namespace, pod, asked.pool)
        return SignAnswer(VERSION, certificate.decode(), authority.bundle)

    async def _pod_of(self, token: str) -> tuple[str, str, str]:
        """Kubernetes namespace, name and UID of the pod that the token is bound to."""
        status = await self._api.review_token(token, AUDIENCE) if token else {}  # it refuses to look at none
        if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or []):
            raise RefusedError(
                "token_refused",
                f"the API server does not take the token for audience {AUDIENCE}: it has expired, is meant for others, "
                f"or its pod is gone",
            )
        user = status.get("user") or {}
        extra, name = user.get("extra") or {}, str(user.get("username") or "")
        pod, uid = (str((extra.get(entry) or [""])[0]) for entry in (_POD_NAME, _POD_UID))
        if not name.startswith(_ACCOUNT) or not pod or not uid:
            raise RefusedError("not_bound", "the token is bound to no pod; send the one that is projected into the pod")
        return name.removeprefix(_ACCOUNT).partition(":")[0], pod, uid

    async def _require_member(self, k8s_namespace: str, pod: str, uid: str, pool: str) -> None:
        metadata = await self._api.pod_metadata(k8s_namespace, pod)
        if metadata is None or metadata.get("uid") != uid:
            raise RefusedError("not_a_member", f"pod {k8s_namespace}/{pod} is gone")
        if not pool or (metadata.get("labels") or {}).get(POOL_LABEL) != pool:
            raise RefusedError(
                "not_a_member", f"pod {k8s_namespace}/{pod} is not labelled {POOL_LABEL}={pool[:63]}; it is no member"
            )


async def _body(request: web.Request) -> bytes:
    body = bytearray()
    if (request.content_length or 0) <= MAX_REQUEST:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_REQUEST:
                break
        else:
            return bytes(body)
    raise RefusedError("too_large", f"the request is longer than {MAX_REQUEST} bytes")


def _decoded(body: bytes) -> SignRequest:
    try:
        return decode_request(body)
    except IdentityError as error:
        raise RefusedError("malformed", str(error)) from None
