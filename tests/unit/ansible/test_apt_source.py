"""A repository: its key is the one of its fingerprint, and its index is fetched once."""

import contextlib
import io
import os
import shutil
import subprocess

import pytest
import tree
from fake_module import FakeModule

from tests.node.mirror.repository import Signer, write_index

module = tree.module("deb_pinned")

FINGERPRINT = "ABCD" * 10
KEY = b"\x99\x00\x04 key"
ARMOURED = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"


REAL_KEY = module.Packages.key


def served(content):
    """A server that has this at every address."""
    return lambda *_, **__: (io.BytesIO(content), {"status": 200})


def source(fingerprint=FINGERPRINT, *, check_mode=False, uri="http://mirror/k"):
    options = {"name": "k", "uri": uri, "key": "Release.key", "fingerprint": fingerprint}
    given = {"packages": [], "also": [], "lock_timeout_s": 0}
    return module.Packages(FakeModule(check_mode=check_mode, source=options, **given))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of folders, and a server that has the key."""
    for name in ("SOURCES", "KEYRINGS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setattr(module.Packages, "key", lambda _self: KEY)
    return tmp_path


def test_a_repository_is_known_once_and_refreshed_alone(machine):
    first = source()
    assert first.add_source() is True
    assert (machine / "KEYRINGS/k.gpg").read_bytes() == KEY
    assert "URIs: http://mirror/k/" in (machine / "SOURCES/k.sources").read_text()
    (update,) = first.module.commands
    assert f"Dir::Etc::sourcelist={machine}/SOURCES/k.sources" in update
    again = source()
    assert (again.add_source(), again.module.commands) == (False, [])


def test_a_key_that_was_lost_is_fetched_again(machine):
    source().add_source()
    (machine / "KEYRINGS/k.gpg").unlink()
    assert source().add_source() is True


@pytest.mark.parametrize("extended", [KEY + b"\xb4\x04user", ARMOURED])
def test_a_key_that_was_extended_is_fetched_again_though_its_fingerprint_is_known(machine, monkeypatch, extended):
    source().add_source()
    monkeypatch.setattr(module.Packages, "key", lambda _self: extended)
    known = source()
    assert known.add_source() is False
    known.renew_source()
    signed_by = (machine / "SOURCES/k.sources").read_text().split()[-2]
    assert (machine / "KEYRINGS" / signed_by).read_bytes() == extended


def test_a_key_with_the_line_ends_of_windows_is_written_as_apt_reads_it(machine, monkeypatch):
    monkeypatch.setattr(module.Packages, "key", REAL_KEY)
    monkeypatch.setattr("ansible.module_utils.urls.fetch_url", served(ARMOURED.replace(b"\n", b"\r\n")))
    source().add_source()
    assert (machine / "KEYRINGS/k.asc").read_bytes() == ARMOURED


def test_a_binary_key_is_written_as_it_is(machine, monkeypatch):
    monkeypatch.setattr(module.Packages, "key", REAL_KEY)
    monkeypatch.setattr("ansible.module_utils.urls.fetch_url", served(KEY + b"\r\n"))
    source().add_source()
    assert (machine / "KEYRINGS/k.gpg").read_bytes() == KEY + b"\r\n"


def test_check_mode_fetches_and_writes_nothing(machine):
    checked = source(check_mode=True)
    assert checked.add_source() is True
    assert checked.module.commands == []
    assert not [path for path in machine.rglob("*") if path.is_file()]


def test_another_fingerprint_and_no_fingerprint_are_another_source(machine):
    source().add_source()
    assert [source(other).add_source() for other in ("B" * 40, "B" * 40, "")] == [True, False, True]
    assert (machine / "SOURCES/k.sources").read_text().endswith("/k.gpg\n")


@pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("apt-get")), reason="no apt or no gpg here")
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("ending", ["asc", "gpg"])
def test_apt_takes_an_index_only_by_the_key_of_the_fingerprint(tmp_path, monkeypatch, right, ending):
    with contextlib.closing(Signer(tmp_path / "gpg")) as signer:
        (tmp_path / "repository").mkdir()
        write_index(tmp_path / "repository", signer, "one", [])
    key = signer.public_key.encode()
    if ending == "gpg":
        key = subprocess.run(["gpg", "--dearmor"], input=key, capture_output=True, check=True).stdout
    monkeypatch.setattr(module, "KEYRINGS", tmp_path)
    monkeypatch.setattr(module, "SOURCES", tmp_path)
    monkeypatch.setattr(module.Packages, "key", lambda _self: key)
    source(signer.fingerprint if right else "A" * 40, uri=f"file:{tmp_path}/repository").renew_source()
    assert (tmp_path / f"k.{ending}").read_bytes() == key
    for name in ("lists/partial", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    settings = [f"Dir::Etc::sourcelist={tmp_path}/k.sources", "Dir::Etc::sourceparts=-", "APT::Update::Error-Mode=any"]
    settings += [f"Dir::State::Lists={tmp_path}/lists", f"Dir::Cache={tmp_path}/cache", "APT::Sandbox::User="]
    command = ["apt-get", "update", *(word for one in settings for word in ("-o", one))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert (done.returncode == 0) is right, done.stderr
    assert right or "versions.yml names" in module.advice("update", done.stderr, 0)
