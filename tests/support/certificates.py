"""Certificates of servers on this machine: of an authority of a test's own, or of their own."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
A_DAY = dt.timedelta(days=1)


def vouched_for(folder, *addresses):
    """What a server of these addresses shows to its clients, and the file of the authority that vouches for it."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    file = folder / "authority.pem"
    file.write_bytes(_made("an authority", authority_key, "an authority", authority_key, authority=True))
    own = _with_key(folder / "server.pem", key, _made("a server", key, "an authority", authority_key, addresses))
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(own)
    return shown, file


def self_signed(folder: Path, address: str = "127.0.0.1") -> Path:
    """A key and a certificate of its own for an address, in one file, which is its authority, too."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    made = _made("a server", key, "a server", key, [address], authority=None)
    return _with_key(folder / "self-signed.pem", key, made)


def _with_key(path, key, certificate):
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + certificate)
    return path


def _made(subject, key, issuer, signs, addresses=(), *, authority=False):
    """authority: None leaves open whether it is one."""
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - A_DAY)
        .not_valid_after(now + A_DAY)
    )
    if authority is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    if addresses:
        names = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signs, hashes.SHA256()).public_bytes(PEM)
