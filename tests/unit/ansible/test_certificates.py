"""The daily renewal of the control plane's certificates: in time, whole, and for the users whose kubeconfig is the administrator's."""

import json
import os
import sys

import pytest
import tree

KUBEADM = """\
#!/bin/sh
echo "kubeadm $*" >> {folder}/calls
case "$2" in
  check-expiration) echo "[check-expiration] Reading configuration"; cat {folder}/certificates ;;
  renew) echo new > {folder}/kubernetes/admin.conf ;;
esac
"""
CRICTL = """\
#!/bin/sh
echo "crictl $*" >> {folder}/calls
[ "$1" = ps ] && printf 'a1\\nb2\\n'
exit {status}
"""
DAY_S = 86400


@pytest.fixture
def renew(tmp_path, monkeypatch):
    """Runs the program on a machine on paper: a certificate's days, and what is called."""
    program = tree.program("roles/control_plane/files/node_certificates.py")
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes/admin.conf").write_text("old\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(program, "KUBERNETES", tmp_path / "kubernetes")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def run(days, *paths, status=0):
        listed = [
            {"name": "apiserver", "residualTime": days * DAY_S},
            {"name": "gone", "residualTime": 0, "missing": True},
        ]
        listed.append({"name": "theirs", "residualTime": 0, "externallyManaged": True})
        (tmp_path / "certificates").write_text(json.dumps({"certificates": listed}))
        (tmp_path / "calls").unlink(missing_ok=True)
        tree.programs(tmp_path / "bin", ["kubeadm"], KUBEADM.format(folder=tmp_path))
        tree.programs(tmp_path / "bin", ["crictl"], CRICTL.format(folder=tmp_path, status=status))
        monkeypatch.setattr(sys, "argv", ["node-certificates", "90", *map(str, paths)])
        program.main()
        return [line.split()[1] for line in (tmp_path / "calls").read_text().splitlines()]

    return run


def test_certificates_are_renewed_in_time_and_not_before(renew):
    assert renew(91) == ["certs"]
    assert renew(89) == ["certs", "certs", "ps", "stop"]


def test_users_get_the_new_kubeconfig_where_theirs_was_the_administrator_s(renew, tmp_path):
    copy, other, link = (tmp_path / name for name in ("copy", "other", "link"))
    copy.write_text("old\n")
    copy.chmod(0o600)
    other.write_text("another cluster's\n")
    link.symlink_to(copy)
    renew(10, copy, other, link, tmp_path / "nobody's")
    assert (copy.read_text(), other.read_text(), link.is_symlink()) == ("new\n", "another cluster's\n", True)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_a_renewal_that_was_interrupted_is_finished_by_the_next(renew, tmp_path):
    copy = tmp_path / "copy"
    copy.write_text("old\n")
    with pytest.raises(SystemExit, match="crictl ps"):
        renew(10, copy, status=1)
    assert (tmp_path / "kubernetes/renewal-unfinished").exists()
    assert renew(365, copy) == ["certs", "certs", "ps", "stop"]
    assert copy.read_text() == "new\n"
    assert not (tmp_path / "kubernetes/renewal-unfinished").exists()
