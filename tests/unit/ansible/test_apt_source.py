"""The signing key is known by its fingerprint, and apt's index by its file name."""

import base64
import hashlib
from pathlib import Path

import pytest
import tree
from fake_module import Failed, FakeModule

apt_get = tree.shared("apt_get")
module = tree.shared("apt_source")

BODY = b"\x04" + b"\x5f\x00\x00\x00" + b"\x01" + b"k" * 300
FINGERPRINT = hashlib.sha1(b"\x99" + len(BODY).to_bytes(2, "big") + BODY).hexdigest().upper()  # noqa: S324 - by definition
OLD = b"\x99" + len(BODY).to_bytes(2, "big") + BODY
NEW_TWO_OCTETS = b"\xc6" + bytes([((len(BODY) - 192) >> 8) + 192, (len(BODY) - 192) & 0xFF]) + BODY
NEW_FIVE_OCTETS = b"\xc6\xff" + len(BODY).to_bytes(4, "big") + BODY


def source(fingerprint=FINGERPRINT, *, check_mode=False):
    options = {"name": "k", "uri": "http://mirror/k", "suite": "/", "components": [], "key": "Release.key"}
    fake = FakeModule(check_mode=check_mode)
    return module.Source(fake, {**options, "fingerprint": fingerprint, "timeout_s": 1}, apt_get.AptGet(fake, 0))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of folders, and a server that has the key."""
    for name in ("SOURCES", "KEYRINGS", "LISTS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setattr(module.Source, "key", lambda _self: OLD)
    monkeypatch.setattr(FakeModule, "atomic_move", lambda _self, new, old: Path(new).replace(old), raising=False)
    return tmp_path


def test_a_repository_is_known_once_and_refreshed_alone(machine):
    first = source()
    assert first.apply() is True
    assert (machine / "KEYRINGS/k.gpg").read_bytes() == OLD
    assert "URIs: http://mirror/k/" in (machine / "SOURCES/k.sources").read_text()
    (update,) = first.module.commands
    assert f"Dir::Etc::sourcelist={machine}/SOURCES/k.sources" in update
    (machine / "LISTS/mirror_k_Packages").touch()
    again = source()
    assert (again.apply(), again.module.commands) == (False, [])


@pytest.mark.usefixtures("machine")
def test_an_index_that_a_killed_run_did_not_fetch_is_fetched_by_the_next():
    source().apply()
    again = source()
    assert again.apply() is True
    assert len(again.module.commands) == 1


def test_a_key_that_was_extended_is_fetched_again_though_its_fingerprint_is_known(machine, monkeypatch):
    source().apply()
    (machine / "LISTS/mirror_k_Packages").touch()
    extended = OLD + b"\xb4\x04user"
    monkeypatch.setattr(module.Source, "key", lambda _self: extended)
    known = source()
    assert known.apply() is False
    known.renew()
    assert (machine / "KEYRINGS/k.gpg").read_bytes() == extended


def test_check_mode_fetches_and_writes_nothing(machine):
    checked = source(check_mode=True)
    assert checked.apply() is True
    assert checked.module.commands == []
    assert not [path for path in machine.rglob("*") if path.is_file()]


def armoured(key):
    text = base64.encodebytes(key).decode()
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: x\n\n{text}=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n".encode()


@pytest.mark.parametrize("key", [OLD, NEW_TWO_OCTETS, NEW_FIVE_OCTETS, OLD + b"\xb4\x04user"])
def test_the_fingerprint_is_that_of_the_primary_key(key):
    assert module.fingerprint(key) == FINGERPRINT
    assert module.fingerprint(module.dearmoured(armoured(key))) == FINGERPRINT


@pytest.mark.parametrize("data", [b"", b"\x99", b"<html>not found</html>", OLD[:100], b"\x99\x00\x03\x03ab"])
def test_what_is_no_key_is_refused(data):
    with pytest.raises(ValueError, match=r"OpenPGP|cut short"):
        module.fingerprint(data)


def test_a_key_of_somebody_else_ends_the_module_with_both_fingerprints():
    with pytest.raises(Failed, match=rf"{FINGERPRINT}, expected {'A' * 40}"):
        source("A" * 40).check(OLD, "http://mirror/Release.key")


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("http://10.0.2.2:33815/crio/", "10.0.2.2:33815_crio"),
        ("https://pkgs.k8s.io/core:/stable:/v1.35/deb/", "pkgs.k8s.io_core:_stable:_v1.35_deb"),
        ("https://user:secret@mirror.example/a_b~c/", "mirror.example_a%5fb%7ec"),
    ],
)
def test_the_index_is_looked_for_under_apt_s_own_name(uri, name):
    assert module.list_prefix(uri) == name


def test_the_source_names_its_own_keyring():
    text = module.deb822("http://mirror/", "/", [], "/etc/apt/keyrings/x.gpg")
    assert text == "Types: deb\nURIs: http://mirror/\nSuites: /\nSigned-By: /etc/apt/keyrings/x.gpg\n"
