"""A published set can be signed with an SSH key; who asks for a signature gets a refusal for anything else."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from harness.errors import ResultsPathError, UsageError, VerificationError
from harness.results.signature import sign, signature_of, signer_of
from tests.unit.results.synthetic import Shape, write_campaign

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH's ssh-keygen is not installed")


def key(folder: Path, name: str) -> Path:
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def signers(folder: Path, *keys: Path) -> Path:
    path = folder / "signers"
    path.write_text("".join(f"{each.name}@example.org {each.with_suffix('.pub').read_text()}" for each in keys))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.tar.xz"
    path.write_bytes(b"what was measured")
    return path


def test_an_archive_is_its_signers_and_nobody_elses(archive: Path, tmp_path: Path) -> None:
    ada, eve = key(tmp_path, "ada"), key(tmp_path, "eve")
    known = signers(tmp_path, ada)
    with pytest.raises(VerificationError, match="is not signed"):
        signer_of(archive, known)
    sign(archive, ada)
    assert signer_of(archive, known) == "ada@example.org"
    with pytest.raises(VerificationError, match="by none of those"):
        signer_of(archive, signers(tmp_path, eve))
    archive.write_bytes(b"what was not measured")
    with pytest.raises(VerificationError, match=r"is not what ada@example\.org signed"):
        signer_of(archive, signers(tmp_path, ada))


def test_a_signature_for_something_else_does_not_pass(archive: Path, tmp_path: Path) -> None:
    ada = key(tmp_path, "ada")
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(ada), "-n", "git", str(archive)], check=True)
    assert signature_of(archive).is_file()
    with pytest.raises(VerificationError):
        signer_of(archive, signers(tmp_path, ada))


def test_a_key_that_cannot_sign_is_said_and_leaves_no_signature(archive: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no key")
    broken.chmod(0o600)
    with pytest.raises(UsageError, match="did not sign it"):
        sign(archive, broken)
    assert not signature_of(archive).exists()


def test_publish_signs_and_verify_asks_for_it(tmp_path: Path) -> None:
    campaign = tmp_path / "synthetic-20260131T000000Z"
    write_campaign(campaign, replicas=[1], repeats=1, shape=Shape(record_s=20))
    ada = key(tmp_path, "ada")
    made = CliRunner().invoke(app, ["publish", str(campaign), "--sign", str(ada), "--json"])
    assert made.exit_code == 0, made.output
    archive = json.loads(made.stdout)["archive"]
    asked = ["verify", archive, "--signed-by", str(signers(tmp_path, ada)), "--json"]
    assert json.loads(CliRunner().invoke(app, asked).stdout)["signed_by"] == "ada@example.org"
    folder = CliRunner().invoke(app, ["verify", str(campaign), "--signed-by", str(tmp_path / "signers")])
    assert isinstance(folder.exception, ResultsPathError)
