#!/usr/bin/python3
"""Renews the certificates of the control plane in time, and gives users the new kubeconfig. Run by systemd once a day.

    node-certificates DAYS [KUBECONFIG...]     renew once one of them ends within so many days

A KUBECONFIG that is the administrator's, word for word, is replaced by the new one, its owner and mode being kept; any other stays.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

KUBERNETES = Path("/etc/kubernetes")
# There until all of them are read: a run that meets it was preceded by a killed one. The role control_plane has the same one.
MARK = "renewal-unfinished"
READERS = "^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$"


def run(*words: str) -> str:
    """What a program says; ends with its own words where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"node-certificates: {' '.join(words)} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def due(days: int) -> list[str]:
    """The certificates that end within so many days; kubeadm says words before its answer."""
    said = run("kubeadm", "certs", "check-expiration", "--output", "json")
    known = json.loads(said[said.index("{") :])["certificates"]
    ours = [item for item in known if not item.get("missing") and not item.get("externallyManaged")]
    return [item["name"] for item in ours if item["residualTime"] < days * 86400]


def digest(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hand_on(path: Path, before: list[str], after: str) -> None:
    """A user's copy of the administrator's kubeconfig, by the sums of that, replaced at once; a link, and what is no copy, stay."""
    if path.is_symlink() or not path.is_file() or digest(path) not in before:
        return
    own, new = path.stat(), path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchown(file.fileno(), own.st_uid, own.st_gid)
        file.write(after)
    new.replace(path)


def main() -> None:
    """Renews what has to be."""
    days, paths = int(sys.argv[1]), [Path(word) for word in sys.argv[2:]]
    mark, admin = KUBERNETES / MARK, KUBERNETES / "admin.conf"
    names = due(days)
    if not names and not mark.exists():
        return
    sys.stdout.write(
        f"renewing, for these end within {days} days: {', '.join(names) or 'none, but an earlier run was killed'}\n"
    )
    # With the sum of what users have before the first try, which one that is killed has changed.
    before = [digest(admin), *(mark.read_text(encoding="utf-8").split()[-1:] if mark.exists() else [])]
    mark.write_text(f"The certificates are being renewed; the next run finishes it. {before[-1]}\n", encoding="utf-8")
    run("kubeadm", "certs", "renew", "all")
    containers = run("crictl", "ps", "--quiet", "--name", READERS).split()
    if containers:
        run("crictl", "stop", "--timeout", "30", *containers)
    for path in paths:
        hand_on(path, before, admin.read_text(encoding="utf-8"))
    mark.unlink()


if __name__ == "__main__":
    main()
