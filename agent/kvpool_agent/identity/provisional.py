"""What a member without a certificate shows the controller, so that it can say so: one that it has signed itself.

It proves nothing, and no member takes it. The controller's own is checked as ever before anything is answered.
"""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from kvpool_agent.identity.credentials import Credentials, new_key, read_credentials
from kvpool_contract.identity import CertificateName

# Nobody looks at these, and this member's clock may be wrong.
_BEGIN, _END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def self_signed(own: CertificateName, authorities: bytes) -> Credentials:
    """authorities: PEM, by which the controller is known. Raises IdentityError."""
    (key, secret), name = new_key(), x509.Name([])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(own.encode())]), critical=True)
        .sign(key, hashes.SHA256())
    )
    return read_credentials(made.public_bytes(serialization.Encoding.PEM), secret, authorities)
