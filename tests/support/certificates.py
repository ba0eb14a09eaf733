"""An authority of a test's own, and the certificate of a server on this machine."""

import datetime as dt
import ipaddress
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
A_DAY = dt.timedelta(days=1)


def vouched_for(folder, *addresses):
    """What a server of these addresses shows to its clients, and the file of the authority that vouches for it."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _made("an authority", authority_key.public_key(), "an authority", authority_key, authority=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(each)) for each in addresses])
    certificate = _made("a server", key.public_key(), "an authority", authority_key, names)
    own, file = folder / "server.pem", folder / "authority.pem"
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    own.write_bytes(private + certificate.public_bytes(PEM))
    file.write_bytes(authority.public_bytes(PEM))
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(own)
    return shown, file


def _made(subject, public, issuer, signs, *extensions, authority=False):
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - A_DAY)
        .not_valid_after(now + A_DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    for each in extensions:
        builder = builder.add_extension(each, critical=False)
    return builder.sign(signs, hashes.SHA256())
