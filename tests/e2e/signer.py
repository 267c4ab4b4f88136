"""A signer on the loopback address, for agents without a cluster: what the operator's webhook is to them."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agent_pool import AgentPool, Node
from authority import CLUSTER, DAY, K8S_NAMESPACE, Authority, member_uri
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from trusted import load_pair

from kvpool_contract import identity


class Signer:
    """Signs for whoever brings `token`, as the member that the token is of. `tokens`: member by token. Its port stays
    the same from one `start` to the next."""

    def __init__(self, authority: Authority, pool: str = "demo") -> None:
        self.authority, self.pool, self.life = authority, pool, DAY
        self.tokens: dict[str, str] = {}
        self.asked: list[identity.SignRequest] = []
        self._server: ThreadingHTTPServer | None = None
        self._own = Authority("the webhook's")
        self.port = 0

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def start(self) -> "Signer":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status, document = outer.answer(self.rfile.read(int(self.headers["Content-Length"])))
                data = identity.encode_document(document)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        self._server.socket = self._context().wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, body: bytes) -> tuple[int, Any]:
        request = identity.decode_request(body)
        self.asked.append(request)
        member = self.tokens.get(request.token)
        if member is None or request.pool != self.pool:
            return 403, identity.SignRefused(1, "token_refused", "The token is nobody's.")
        csr = x509.load_pem_x509_csr(request.csr.encode())
        assert csr.is_signature_valid
        key = csr.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        leaf = self.authority.sign(key, member_uri(self.pool, member), life=self.life)
        return 200, identity.SignAnswer(1, leaf.decode(), self.authority.certificate.decode())

    def trust(self, folder: Path, token: str, member: str) -> None:
        """Gives an agent what its pod would have: token, and the signer's authorities beside its configuration."""
        self.tokens[token] = member
        (folder / "identity").mkdir(exist_ok=True)
        (folder / "identity" / identity.TOKEN_FILE).write_text(token)
        (folder / identity.SIGNER_AUTHORITIES_FILE).write_bytes(self._own.certificate)

    def _context(self) -> ssl.SSLContext:
        certificate, key = self._own.leaf(dns=("localhost",))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(context, certificate + key)
        return context


def managed(pool: AgentPool, signer: Signer, name: str) -> Node:
    """A replica, not started yet, whose agent asks the signer with a token of its own, `planted-token-NAME`."""
    tls = {"mode": "Managed", "signer": signer.address, "cluster": CLUSTER, "k8sNamespace": K8S_NAMESPACE}
    node = pool.node(name, tls=tls)
    signer.trust(node.replica.folder, f"planted-token-{name}", node.replica.member)
    return node
