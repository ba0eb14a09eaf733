"""The state of a machine as lines of text, so that two ways of getting there can be compared.

Which units start at boot is among the files, as links; systemd's own list of them would say the same and take most of the time.
"""

import difflib

from tests.node.machine.vm import Machine

# What differs between two machines that are the same: keys, identities, caches, counters, what a boot writes. Units that end by
# themselves when nobody asks them are left out below.
VOLATILE = [
    "/etc/machine-id",
    "/etc/resolv.conf",
    "/etc/.pwd.lock",
    "/etc/ld.so.cache",
    "/etc/passwd-",
    "/etc/group-",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/mtab",
    "/etc/ssl/certs",
    "/root/.ansible",
    "/root/.ssh",
    "/root/.bash_history",
    "/root/.cache",
    "/root/.kube/cache",
    "/home/ops/.ssh",
    "/etc/apt/keyrings",
    # The unfinished half of an atomic write that was killed; the next write of that file removes it.
    "*/.*.new",
]
# Made anew in each cluster: only their being there, their mode and their owner count.
SECRET = (
    "/etc/kubernetes/*.conf",
    "/etc/kubernetes/pki/*",
    "/etc/kubernetes/monitoring/*",
    "*/.kube/config",
    "*/.kube/harness.conf",
    "/etc/ssh/ssh_host_*",
    "/var/lib/recorded/objects/Secret/*",
    "/var/lib/recorded/objects/CertificateSigningRequest/*",
    "/etc/kubernetes/api-server/encryption.yaml",
    "/var/lib/kubelet/pki/*",
)
FOLDERS = [
    "/etc",
    "/opt",
    "/root",
    "/home",
    "/usr/local",
    "/var/lib/kubelet",
    "/var/lib/recorded/objects",
    "/var/lib/etcd",
    "/srv",
]
PROGRAM_FOLDERS = ["/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/lib/systemd/system"]

_SCRIPT = """\
set -eu
present() {{ for folder in "$@"; do if [ -e "$folder" ]; then echo "$folder"; fi; done; }}
echo '## files'
find $(present {folders}) -xdev \\( {skipped} \\) -prune -o -printf '%y %m %u:%g %p %l\\n' | LC_ALL=C sort -k4
echo '## contents'
contents() {{ find $(present {folders}) -xdev \\( {skipped} {secret} \\) -prune -o -type f -print0 | LC_ALL=C sort -z; }}
contents | xargs -0 sha256sum
echo '## programs'
find {programs} -xdev | LC_ALL=C sort
echo '## packages'
dpkg-query -W -f '${{db:Status-Abbrev}} ${{Package}} ${{Version}}\\n'  # h is held
echo '## units'
units=$(systemctl list-units --type=service,path,timer,swap,mount --state=active,failed --no-legend --plain)
echo "$units" | awk '{{print $1, $3, $4}}' | grep -v -E '^(user@|user-runtime|run-user|run-credentials|systemd-(tmpfiles|hostnamed|timedated)|netavark-dhcp-proxy)' | LC_ALL=C sort
echo '## kernel'
tail -n +2 /proc/swaps
lsmod | awk '$1 ~ /^(overlay|br_netfilter)$/ {{print $1}}' | sort
for name in {switches}; do if [ -e "/proc/sys/$name" ]; then echo "$name $(cat "/proc/sys/$name")"; fi; done
"""
SWITCHES = ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"]


def take(machine: Machine) -> list[str]:
    """Read the state: files with contents, packages, holds, units, swap, modules, switches."""
    skipped = " -o ".join(f"-path '{path}'" for path in VOLATILE)
    secret = " ".join(f"-o -path '{path}'" for path in SECRET)
    script = _SCRIPT.format(
        folders=" ".join(FOLDERS),
        skipped=skipped,
        secret=secret,
        programs=" ".join(PROGRAM_FOLDERS),
        switches=" ".join(SWITCHES),
    )
    return machine.output(script).splitlines()


def difference(before: list[str], after: list[str]) -> str:
    """What differs, as a diff; empty when nothing does."""
    return "\n".join(difflib.unified_diff(before, after, "before", "after", lineterm="", n=0))
