"""Snapshots of etcd: taken whole, kept in number, brought back; one that is damaged or another cluster's changes nothing."""

import json
import tarfile

import pytest
import tree

ETCDCTL = """\
#!/bin/sh
[ "$2" = save ] && echo "database $(cat {folder}/state)" > "$3"
"""
ETCDUTL = """\
#!/bin/sh
for word in "$@"; do case "$word" in --data-dir=*) data="${{word#*=}}" ;; esac; done
case "$2" in
  status) echo '{{"revision": 7, "totalKey": 3, "hash": 1}}' ;;
  restore) echo "$*" > {folder}/asked; mkdir -p "$data/member"; cp "$3" "$data/member/db" ;;
esac
"""
MANIFEST = "spec:\n  containers:\n  - command:\n    - etcd\n    - --name=one\n    - --initial-cluster=one=https://192.0.2.1:2380\n"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The program on a machine on paper, whose etcd is two shell scripts."""
    program = tree.program("roles/control_plane/files/node_etcd_snapshot.py")
    kubernetes, process = tmp_path / "kubernetes", tmp_path / "proc/10"
    for name in ("pki/etcd/ca.crt", "pki/ca.crt", "api-server/encryption.yaml"):
        (kubernetes / name).parent.mkdir(parents=True, exist_ok=True)
        (kubernetes / name).write_text(f"first {name}")
    (kubernetes / "manifests").mkdir()
    (kubernetes / "manifests/etcd.yaml").write_text(MANIFEST)
    (process / "root/usr/local/bin").mkdir(parents=True)
    (process / "cmdline").write_text(f"etcd\0--cert-file={kubernetes}/pki/x\0")
    for name, text in (("etcdctl", ETCDCTL), ("etcdutl", ETCDUTL)):
        (process / "root/usr/local/bin" / name).write_text(text.format(folder=tmp_path))
    (tmp_path / "state").write_text("one")
    (tmp_path / "data/member").mkdir(parents=True)
    monkeypatch.setattr(program, "FOLDER", tmp_path / "snapshots")
    monkeypatch.setattr(program, "DATA", tmp_path / "data")
    monkeypatch.setattr(program, "KUBERNETES", kubernetes)
    monkeypatch.setattr(program, "PROCESSES", tmp_path / "proc")
    return program


def taken(node, tmp_path):
    node.take(2)
    (archive,) = (tmp_path / "snapshots").glob("*.tar")
    return archive


def stopped(node, monkeypatch):
    """From now on nothing of the control plane runs, as when its manifests are gone."""
    monkeypatch.setattr(node, "processes", lambda _name: [])


def test_a_snapshot_has_the_database_and_what_it_cannot_be_read_without(node, tmp_path, capsys):
    archive = taken(node, tmp_path)
    assert capsys.readouterr().out.strip() == archive.name
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as tar:
        assert {"manifest.json", "etcd.db", "pki/ca.crt", "api-server/encryption.yaml"} <= set(tar.getnames())
        told = json.loads(tar.extractfile("manifest.json").read())
        assert tar.extractfile("etcd.db").read() == b"database one\n"
    assert (told["revision"], told["keys"], len(told["sha256"])) == (7, 3, 64)


def test_the_newest_are_kept(node, tmp_path, monkeypatch):
    for second in range(4):
        monkeypatch.setattr(node.time, "strftime", lambda *_, second=second: f"2026112{second}T030000Z")
        node.take(2)
    assert sorted(path.name for path in (tmp_path / "snapshots").glob("*.tar")) == [
        "20261122T030000Z.tar",
        "20261123T030000Z.tar",
    ]


def test_the_cluster_is_what_it_was(node, tmp_path, monkeypatch, capsys):
    archive = taken(node, tmp_path)
    (tmp_path / "data/member/lost").write_text("everything since")
    stopped(node, monkeypatch)
    node.restore(archive.name)
    assert (tmp_path / "data/member/db").read_text() == "database one\n"
    assert (tmp_path / "data/member.before-restore/lost").exists()
    asked = (tmp_path / "asked").read_text()
    assert "--name=one --initial-cluster=one=https://192.0.2.1:2380" in asked
    assert "--bump-revision=1000000000 --mark-compacted" in asked
    assert [path.name for path in (tmp_path / "kubernetes/manifests").iterdir()] == ["etcd.yaml"]
    assert "revision 7, 3 keys" in capsys.readouterr().out


def test_a_restore_that_was_killed_is_done_again(node, tmp_path, monkeypatch):
    archive = taken(node, tmp_path)
    stopped(node, monkeypatch)
    node.stop()
    assert list((tmp_path / "kubernetes/manifests").iterdir()) == []
    node.restore(archive.name)
    assert [path.name for path in (tmp_path / "kubernetes/manifests").iterdir()] == ["etcd.yaml"]


@pytest.mark.parametrize("said", ["sha256 differs", "authority differs", "there are"])
def test_a_snapshot_that_cannot_be_it_changes_nothing(node, tmp_path, said):
    archive = taken(node, tmp_path)
    if said == "sha256 differs":
        archive.write_bytes(archive.read_bytes().replace(b"database one", b"database two"))
    elif said == "authority differs":
        (tmp_path / "kubernetes/pki/ca.crt").write_text("second")
    with pytest.raises(SystemExit, match=said):
        node.restore("none.tar" if said == "there are" else archive.name)
    assert (tmp_path / "kubernetes/manifests/etcd.yaml").exists()
    assert not (tmp_path / "data/member/db").exists()


def test_a_control_plane_that_does_not_stop_is_started_again(node, tmp_path, monkeypatch):
    archive = taken(node, tmp_path)
    monkeypatch.setattr(node, "STOP_WITHIN_S", 0)
    with pytest.raises(SystemExit, match="did not stop within 0 s"):
        node.restore(archive.name)
    assert (tmp_path / "kubernetes/manifests/etcd.yaml").exists()


def test_without_etcd_no_snapshot_is_taken_and_that_is_said(node, tmp_path, monkeypatch):
    stopped(node, monkeypatch)
    with pytest.raises(SystemExit, match="etcd does not run"):
        node.take(2)
    assert list((tmp_path / "snapshots").glob("*.tar")) == []
