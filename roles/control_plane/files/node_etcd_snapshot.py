#!/usr/bin/python3
"""Takes a snapshot of etcd with what it cannot be read without, or brings one back. Run by systemd and by the playbooks.

    node-etcd-snapshot take NUMBER     one more in /var/lib/etcd-snapshots; the NUMBER newest are kept
    node-etcd-snapshot restore NAME    the cluster as it was then; every later change is lost

A snapshot is one archive: etcd.db, the certificates and keys of the cluster, the key of its Secrets, and a manifest with the
database's sha256. etcdctl and etcdutl are those of the image that etcd runs in.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

FOLDER = Path("/var/lib/etcd-snapshots")
DATA = Path("/var/lib/etcd")
KUBERNETES = Path("/etc/kubernetes")
PROCESSES = Path("/proc")
TOOLS = ("etcdctl", "etcdutl")
KEPT = ("pki", "api-server/encryption.yaml")
STOP_WITHIN_S = 180
# Debian 12's Python does not know it.
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def end(message: str) -> None:
    """Ends with a reason."""
    raise SystemExit(f"node-etcd-snapshot: {message}")


def run(tool: str, *words: str) -> str:
    """What one of etcd's tools says; ends with its own words where it fails."""
    done = subprocess.run([FOLDER / "bin" / tool, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        end(f"{tool} {' '.join(words[:2])} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def processes(name: str) -> list[Path]:
    """The node's own processes of a name: a pod's read no file of the node's."""
    found = []
    for process in PROCESSES.glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        named = any(Path(os.fsdecode(word)).name == name for word in words[:2])
        if named and any(os.fsencode(KUBERNETES) in word for word in words):
            found.append(process)
    return found


def take_tools() -> None:
    """Copies etcd's tools out of the container that it runs in, which has none when they are needed."""
    running = processes("etcd")
    if not running:
        end("etcd does not run; `crictl ps --all` shows why")
    (FOLDER / "bin").mkdir(mode=0o700, exist_ok=True)
    for tool in TOOLS:
        source = running[0] / "root/usr/local/bin" / tool
        target = FOLDER / "bin" / tool
        if not target.exists() or target.stat().st_size != source.stat().st_size:
            shutil.copyfile(source, target.with_suffix(".part"))
            target.with_suffix(".part").chmod(0o700)
            target.with_suffix(".part").replace(target)


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fresh(name: str) -> Path:
    """An empty folder for what is unfinished."""
    path = FOLDER / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    return path


def take(number: int) -> None:
    """One more snapshot; prints its name."""
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    take_tools()
    part, pki = fresh(".part"), KUBERNETES / "pki/etcd"
    database = part / "etcd.db"
    client = f"{pki}/healthcheck-client"
    credentials = [f"--cacert={pki}/ca.crt", f"--cert={client}.crt", f"--key={client}.key"]
    run("etcdctl", "snapshot", "save", str(database), "--endpoints=https://127.0.0.1:2379", *credentials)
    status = json.loads(run("etcdutl", "snapshot", "status", str(database), "--write-out=json"))
    taken_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    told = {"taken_at": taken_at, "sha256": digest(database)}
    told |= {"revision": status["revision"], "keys": status["totalKey"]}
    (part / "manifest.json").write_text(json.dumps(told))
    archive = part / "archive"
    with tarfile.open(archive, "w") as tar:
        tar.add(part / "manifest.json", "manifest.json")
        tar.add(database, "etcd.db")
        for name in KEPT:
            tar.add(KUBERNETES / name, name)
    archive.chmod(0o600)
    with archive.open("rb") as file:
        os.fsync(file.fileno())
    archive.replace(FOLDER / f"{taken_at}.tar")
    shutil.rmtree(part)
    for old in sorted(FOLDER.glob("*.tar"))[:-number]:
        old.unlink()
    sys.stdout.write(f"{taken_at}.tar\n")


def flags_of_etcd() -> dict[str, str]:
    """The flags that etcd is started with, from its manifest or from where a restore has put it."""
    places = [KUBERNETES / folder / "etcd.yaml" for folder in ("manifests", "manifests-restoring")]
    text = next((place.read_text() for place in places if place.exists()), "")
    words = [line.strip().removeprefix("- ") for line in text.splitlines()]
    return dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))


def stop() -> None:
    """Takes the manifests away and waits until the kubelet has ended what they describe."""
    manifests, aside = KUBERNETES / "manifests", KUBERNETES / "manifests-restoring"
    aside.mkdir(mode=0o700, exist_ok=True)
    for path in manifests.glob("*.yaml"):
        path.replace(aside / path.name)
    deadline_s = time.monotonic() + STOP_WITHIN_S
    while processes("etcd") or processes("kube-apiserver"):
        if time.monotonic() > deadline_s:
            start()
            end(
                f"the control plane did not stop within {STOP_WITHIN_S} s and was started again; see the kubelet's journal"
            )
        time.sleep(0.5)


def start() -> None:
    """Puts the manifests back."""
    aside = KUBERNETES / "manifests-restoring"
    for path in aside.glob("*.yaml"):
        path.replace(KUBERNETES / "manifests" / path.name)
    aside.rmdir()


def restore(name: str) -> None:
    """The cluster as it was when a snapshot was taken. What is wrong with the snapshot is said before anything is stopped."""
    archive = FOLDER / name
    if not archive.is_file():
        end(f"no {archive}; there are {', '.join(sorted(path.name for path in FOLDER.glob('*.tar'))) or 'none'}")
    part = fresh(".restore")
    with tarfile.open(archive) as tar:
        tar.extractall(part, **FILTER)  # noqa: S202 - an archive of our own, where only root writes
    told = json.loads((part / "manifest.json").read_text())
    if digest(part / "etcd.db") != told["sha256"]:
        end(f"the database in {name} is not the one that was put there: its sha256 differs. Nothing was changed")
    if (part / "pki/ca.crt").read_bytes() != (KUBERNETES / "pki/ca.crt").read_bytes():
        end(
            f"{name} is another cluster's: its certificate authority differs. Nothing was changed; docs/node.md says how to begin"
        )
    flags = flags_of_etcd()
    wanted = ("name", "initial-cluster", "initial-advertise-peer-urls")
    member = [f"--{flag}={flags[flag]}" for flag in wanted if flag in flags]
    # Watchers see a later revision than any they know, and ask for everything anew.
    further = ["--bump-revision=1000000000", "--mark-compacted"]
    run("etcdutl", "snapshot", "restore", str(part / "etcd.db"), f"--data-dir={part / 'data'}", *member, *further)
    stop()
    shutil.rmtree(DATA / "member.before-restore", ignore_errors=True)
    if (DATA / "member").exists():
        (DATA / "member").replace(DATA / "member.before-restore")
    shutil.move(part / "data/member", DATA / "member")
    shutil.copyfile(part / "api-server/encryption.yaml", KUBERNETES / "api-server/encryption.yaml")
    start()
    shutil.rmtree(part)
    sys.stdout.write(f"restored {name}: revision {told['revision']}, {told['keys']} keys\n")


def main() -> None:
    """Runs one of the verbs."""
    verbs = {"take": lambda word: take(int(word)), "restore": restore}
    if len(sys.argv) != 3 or sys.argv[1] not in verbs:
        end("say take NUMBER, or restore NAME")
    verbs[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
