"""Who may ask about a cache namespace: who has proved on this connection that it holds the namespace's key of now.

Both sides prove at once, by MACs over both sides' nonces and both sides' names as the handshake has shown them: under
TLS a proof can't be relayed by a member in between, whose own name it would bear. Proofs come in a fixed number, in no
order, most of them random bytes, so that nobody learns how many keys the other side holds, nor of what.

**An unentitled question is a miss**: the same bytes, by the same code, with the same amount of work. Every question's
keys are combined with two masks before they are looked up: the same one twice for the entitled, which changes nothing,
two different ones for others; both are secrets of this process.
The question of the unentitled goes to the default cache namespace's blocks, under names that nothing has, whether or
not this member holds what was asked for: so neither answer nor time can depend on it.
"""

import hmac
import random
import secrets
import struct
import time
from collections.abc import Sequence

from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_contract.names import BLOCK_KEY_BYTES
from kvpool_contract.tenants import MAX_CACHE_NAMESPACES, MAX_EPOCHS

PROOF_BYTES = 32
PROOFS = MAX_CACHE_NAMESPACES * MAX_EPOCHS
PROVE_SECONDS = 5.0
AGAIN_SECONDS = 5.0  # from a proof to the next one: what the other side holds may be more by then
_ASKER, _ANSWERER = b"asker", b"answerer"


class Entitlement:
    """The one side of it, at whichever end of a connection. `own`: member and incarnation of this agent."""

    def __init__(self, keyring: Keyring, own: tuple[str, str]) -> None:
        self._keyring, self._own = keyring, own
        self._mask, self._other_mask = (secrets.token_bytes(BLOCK_KEY_BYTES) for _ in range(2))

    @property
    def keyed(self) -> bool:
        """Whether cache namespaces have keys here."""
        return self._keyring.keyed

    @property
    def changed_at(self) -> float:
        """When this agent's keys were others last, on the monotonic clock."""
        return self._keyring.changed_at

    # -- proving -------------------------------------------------------------------------------------

    def prove(self, connection: Connection) -> None:
        """The asker's side, every five seconds at most, and when the own keys are others. Raises PeerError."""
        now, before = time.monotonic(), connection.proved_at
        if connection.version < frames.PROOF_VERSION:
            return
        if now < before + AGAIN_SECONDS and before > self._keyring.changed_at:
            return
        ours = secrets.token_bytes(frames.NONCE_BYTES)
        connection.send(frames.Entitle(ours))
        answer, tail_length = connection.receive()
        if not isinstance(answer, frames.Entitling) or tail_length != PROOFS * PROOF_BYTES:
            raise PeerError(f"bad answer to entitle: {type(answer).__name__} with {tail_length} bytes")
        theirs = connection.read(tail_length)
        text = self._text(self._own, _peer(connection), ours, answer.nonce)
        connection.send(frames.Proof(), self._proofs(_ASKER, text))
        done, tail_length = connection.receive()
        if not isinstance(done, frames.Proved) or tail_length:
            raise PeerError(f"bad answer to a proof: {type(done).__name__} with {tail_length} bytes")
        connection.proved, connection.proved_at = self._checked(_ANSWERER, text, theirs), now

    def answer(self, connection: Connection, question: frames.Entitle) -> None:
        """The other side. Raises PeerError."""
        ours = secrets.token_bytes(frames.NONCE_BYTES)
        text = self._text(_peer(connection), self._own, question.nonce, ours)
        connection.send(frames.Entitling(ours), self._proofs(_ANSWERER, text), seconds=PROVE_SECONDS)
        proof, tail_length = connection.receive()
        if not isinstance(proof, frames.Proof) or tail_length != PROOFS * PROOF_BYTES:
            raise PeerError(f"no proof: {type(proof).__name__} with {tail_length} bytes")
        connection.proved = self._checked(_ASKER, text, connection.read(tail_length))
        connection.send(frames.Proved(), seconds=PROVE_SECONDS)

    def _text(self, asker: tuple[str, str], answerer: tuple[str, str], *nonces: bytes) -> bytes:
        """What is proved over: each part with its length, so that no two lists of them read alike."""
        parts = [self._keyring.pool.encode(), *(name.encode() for name in (*asker, *answerer)), *nonces]
        return b"".join(struct.pack("!I", len(part)) + part for part in parts)

    def _proofs(self, role: bytes, text: bytes) -> bytes:
        proofs = [
            hmac.digest(key, role + text, "sha256")
            for space in self._keyring.spaces
            for key in space.proofs[:MAX_EPOCHS]
        ][:PROOFS]
        proofs += [secrets.token_bytes(PROOF_BYTES) for _ in range(PROOFS - len(proofs))]
        random.SystemRandom().shuffle(proofs)
        return b"".join(proofs)

    def _checked(self, role: bytes, text: bytes, tail: bytes) -> frozenset[bytes]:
        """Those of our keys that the other side has proved to hold."""
        found = [tail[at : at + PROOF_BYTES] for at in range(0, len(tail), PROOF_BYTES)]
        return frozenset(
            key
            for space in self._keyring.spaces
            for key in space.proofs
            for proof in (hmac.digest(key, role + text, "sha256"),)
            if sum(hmac.compare_digest(proof, one) for one in found)  # each, always
        )

    # -- asking --------------------------------------------------------------------------------------

    def shares(self, connection: Connection, slab: bytes) -> bool:
        """Whether the member at the other end may be asked about the slab with this id: it has proved to hold the key
        of its cache namespace, where that has one. Proves first, where it is time. Raises PeerError."""
        if not self._keyring.keyed:
            return True
        space = self._keyring.of(slab)
        if space is None:
            return False
        self.prove(connection)
        return _proved(space, connection)

    def shares_default(self, connection: Connection) -> bool:
        """The same of the default cache namespace, of which homes keep the directory."""
        return not self._keyring.keyed or self.shares(connection, self._keyring.default_id)

    # -- answering -----------------------------------------------------------------------------------

    def view(self, connection: Connection, slab: bytes, keys: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """What a question about these blocks is answered as: the id of a slab, and names in it."""
        if not self._keyring.keyed:
            return slab, keys
        if self._has_proved(connection, slab):
            return slab, _masked(keys, self._mask, self._mask)
        return self._keyring.default_id, _masked(keys, self._mask, self._other_mask)

    def view_default(self, connection: Connection, keys: Sequence[bytes]) -> Sequence[bytes]:
        """The names that a question to this member as a home is answered for."""
        return self.view(connection, self._keyring.default_id, keys)[1]

    def entitled(self, connection: Connection, slab: bytes) -> bool:
        """Whether the asker may see this slab."""
        return not self._keyring.keyed or self._has_proved(connection, slab)

    def entitled_to_default(self, connection: Connection) -> bool:
        return self.entitled(connection, self._keyring.default_id)

    def _has_proved(self, connection: Connection, slab: bytes) -> bool:
        """Whether the asker holds the key of this slab's cache namespace. Of one that nobody has heard of as much is
        looked at: how long it takes does not tell which ones are here."""
        space = self._keyring.of(slab)
        proved = _proved(self._keyring.default if space is None else space, connection)
        return proved and space is not None


def _peer(connection: Connection) -> tuple[str, str]:
    if connection.peer is None:
        raise PeerError("a proof before the handshake")
    return connection.peer


def _proved(space: Space, connection: Connection) -> bool:
    """Whether the other side holds the key of the epoch of now: one of an epoch that is over opens nothing."""
    return bool(space.proofs) and space.proofs[0] in connection.proved


def _masked(keys: Sequence[bytes], mask: bytes, other: bytes) -> Sequence[bytes]:
    """Each key combined with both masks: none of the operations is shorter for masks that cancel out."""
    joined = b"".join(keys)
    changed = int.from_bytes(joined, "big") ^ int.from_bytes(mask * len(keys), "big")
    changed ^= int.from_bytes(other * len(keys), "big")
    tail = changed.to_bytes(len(joined), "big")
    return [tail[at : at + BLOCK_KEY_BYTES] for at in range(0, len(tail), BLOCK_KEY_BYTES)]
