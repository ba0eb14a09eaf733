"""Our playbooks against the test's API server, on this machine, in mount namespaces of their own.

The roles speak to ``/etc/kubernetes/admin.conf`` by ``/usr/bin/kubectl``, ask ``/usr/bin/systemctl``, and write into the home of root; keys and logins of
the monitoring are kept from one run to the next. All of it is laid over this machine's own folders in a namespace that ends with the run, so that nothing here changes and no cluster
of this machine is reached.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.cluster.api_server import ROOT, Cluster, found
from tests.support.module_python import module_python

WITHIN_S = 300
_INSIDE = """\
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/etc" "$1/etc-work" "$1/bin" "$1/bin-work"
cp "$2" "$1/admin.conf"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/etc-work" /etc
mkdir -p /etc/kubernetes
cp "$1/admin.conf" /etc/kubernetes/admin.conf
mkdir -p /etc/kubernetes/monitoring
mount --bind "$4-kept" /etc/kubernetes/monitoring
mount -t overlay overlay -o "lowerdir=/usr/bin,upperdir=$1/bin,workdir=$1/bin-work" /usr/bin
rm -f /usr/bin/kubectl
cp "$3" /usr/bin/kubectl
rm -f /usr/bin/systemctl
cat > /usr/bin/systemctl <<'PROGRAM'
#!/bin/sh
# A systemd that has none of the node's units; this machine's own is not asked.
[ "$1" = show ] || exit 1
printf 'Id=%s\\nLoadState=not-found\\nActiveState=inactive\\nUnitFileState=\\nNeedDaemonReload=no\\n' "$5"
PROGRAM
chmod 755 /usr/bin/systemctl
mount -t overlay overlay -o "lowerdir=/root,upperdir=$4,workdir=$4-work" /root
shift 4
exec "$@"
"""


def possible() -> bool:
    """Whether this machine lets us lay one folder over another in a namespace of our own."""
    if os.geteuid() != 0:
        return False
    script = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/u /mnt/w && mount -t overlay o -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Run:
    """What a run said, and its recap."""

    status: int
    output: str

    @property
    def changed(self) -> int:
        """Tasks that changed something, over all hosts."""
        return sum(int(count) for count in re.findall(r"changed=(\d+)", self.output))


def home(cluster: Cluster) -> Path:
    """What runs have written into the home of root."""
    return cluster.kubeconfig.with_name("home")


def play(cluster: Cluster, playbook: str, *arguments: str, **variables: Any) -> Run:
    """Run a playbook of this project against the cluster; host variables as keyword arguments."""
    folder = cluster.kubeconfig.with_name("laid-over")
    for one in (folder, home(cluster), home(cluster).with_name("home-work"), home(cluster).with_name("home-kept")):
        one.mkdir(exist_ok=True)
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _INSIDE, "sh", str(folder)]
    inside += [str(cluster.kubeconfig), str(found("kubectl")), str(home(cluster))]
    program = Path(sys.executable).with_name("ansible-playbook")
    extra = json.dumps({"ansible_python_interpreter": module_python(), **variables})
    command = [*inside, str(program), "-i", "inventory/hosts.yml", playbook, "-e", extra, *arguments]
    environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    return Run(done.returncode, done.stdout + done.stderr)
