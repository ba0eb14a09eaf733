"""A repository: its key is the one of its fingerprint, and apt's index is known by its file name."""

import base64
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tree
from fake_module import FakeModule

from tests.node.mirror.repository import Signer, write_index

apt_get = tree.shared("apt_get")
module = tree.shared("apt_source")

FINGERPRINT = "ABCD" * 10
KEY = b"\x99\x00\x04 key"


def source(fingerprint=FINGERPRINT, *, check_mode=False):
    options = {"name": "k", "uri": "http://mirror/k", "key": "Release.key", "fingerprint": fingerprint}
    fake = FakeModule(check_mode=check_mode)
    return module.Source(fake, options, apt_get.AptGet(fake, 0))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of folders, and a server that has the key."""
    for name in ("SOURCES", "KEYRINGS", "LISTS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setattr(module.Source, "key", lambda _self: KEY)
    monkeypatch.setattr(FakeModule, "atomic_move", lambda _self, new, old: Path(new).replace(old), raising=False)
    return tmp_path


def test_a_repository_is_known_once_and_refreshed_alone(machine):
    first = source()
    assert first.apply() is True
    assert (machine / "KEYRINGS/k.gpg").read_bytes() == KEY
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
    extended = KEY + b"\xb4\x04user"
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


def test_an_armoured_key_is_kept_in_binary():
    assert module.dearmoured(armoured(KEY)) == module.dearmoured(KEY) == KEY


def test_another_fingerprint_and_no_fingerprint_are_another_source(machine):
    source().apply()
    (machine / "LISTS/mirror_k_Packages").touch()
    assert [source(other).apply() for other in ("B" * 40, "B" * 40, "")] == [True, False, True]
    assert (machine / "SOURCES/k.sources").read_text().endswith("/k.gpg\n")


@pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("apt-get")), reason="no apt or no gpg here")
@pytest.mark.parametrize("right", [True, False])
def test_apt_takes_an_index_only_by_the_key_of_the_fingerprint(tmp_path, right):
    with contextlib.closing(Signer(tmp_path / "gpg")) as signer:
        (tmp_path / "repository").mkdir()
        write_index(tmp_path / "repository", signer, "one", [])
    keyring = tmp_path / "k.gpg"
    keyring.write_bytes(module.dearmoured(signer.public_key.encode()))
    text = module.deb822(f"file:{tmp_path}/repository/", keyring, signer.fingerprint if right else "A" * 40)
    (tmp_path / "k.sources").write_text(text)
    for name in ("lists/partial", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    settings = [f"Dir::Etc::sourcelist={tmp_path}/k.sources", "Dir::Etc::sourceparts=-", "APT::Update::Error-Mode=any"]
    settings += [f"Dir::State::Lists={tmp_path}/lists", f"Dir::Cache={tmp_path}/cache", "APT::Sandbox::User="]
    command = ["apt-get", "update", *(word for one in settings for word in ("-o", one))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert (done.returncode == 0) is right, done.stderr
    assert right or "versions.yml names" in apt_get.advice("update", done.stderr, 0)


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
