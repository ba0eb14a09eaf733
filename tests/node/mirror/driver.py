"""NVIDIA's driver and a kernel's packages, made small: upstream's names and what the role and the verdict look at.

The module is none: once it was "built" it stands in the kernel's list, and `modprobe nvidia` (the real one) has a program run that
shows it where the real one would. What the daemons and the sources bring, and under which paths, is upstream's.
"""

from tests.node.mirror.debs import File, Package

REVISION = "-1"
# Offered beside the wanted one: what an upgrade would take.
LATER = "580.105.08"
DKMS = """\
#!/bin/sh
# dkms autoinstall --kernelver RELEASE: what the sources in /usr/src say is built.
set -eu
[ "$1 $2" = "autoinstall --kernelver" ] || { echo "this stand-in does not know: dkms $*" >&2; exit 1; }
ls -d /usr/src/nvidia-* > /dev/null 2>&1 || exit 0
grep -q updates/dkms/nvidia.ko "/lib/modules/$3/modules.dep" || echo "updates/dkms/nvidia.ko:" >> "/lib/modules/$3/modules.dep"
"""
BUILD = '#!/bin/sh\nset -e\n[ "$1" != configure ] || dkms autoinstall --kernelver "$(uname -r)"\n'
FORGET = "#!/bin/sh\nset -e\nsed -i '/nvidia.ko:/d' /lib/modules/*/modules.dep\n"
# In memory until the next boot, whatever becomes of the package.
LOAD = """\
#!/bin/sh
set -eu
mount -t tmpfs nvidia /proc/driver
mkdir /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX {kind} for x86_64  {version}  Release Build" > /proc/driver/nvidia/version
"""
DAEMON = """\
[Unit]
Description={name}, recorded

[Service]
Type=forking
ExecStart={command}

[Install]
WantedBy=multi-user.target
"""
# Neither runs where no module is loaded: the packages' own attempt to start it, right when they are installed, comes to nothing.
RUN = """\
#!/bin/sh
test -e /proc/driver/nvidia/version || {{ echo "{name}: the NVIDIA driver is not loaded" >&2; exit 1; }}
setsid sleep infinity &
"""
# What systemd asks by when the service is switched on or off.
RUNLEVELS = """\
#!/bin/sh
### BEGIN INIT INFO
# Provides:          {name}
# Required-Start:    $local_fs
# Required-Stop:     $local_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
### END INIT INFO
"""
# An account that stays when the package goes, as the real one's does; enabled and begun by the package itself.
PERSISTENCE_ACCOUNT = "nvpd"
PERSISTENCE_BEGINS = f"""\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
getent passwd {PERSISTENCE_ACCOUNT} > /dev/null ||
  useradd --system --home-dir /var/run/nvpd/ --comment "NVIDIA Persistence Daemon" {PERSISTENCE_ACCOUNT}
update-rc.d nvidia-persistenced defaults > /dev/null
deb-systemd-helper enable nvidia-persistenced.service > /dev/null
systemctl daemon-reload
deb-systemd-invoke start nvidia-persistenced.service > /dev/null || true
"""
PERSISTENCE_ENDS = """\
#!/bin/sh
set -e
[ "$1" != remove ] || deb-systemd-invoke stop nvidia-persistenced.service > /dev/null || true
"""
PERSISTENCE_GONE = """\
#!/bin/sh
set -e
[ "$1" = purge ] || exit 0
update-rc.d nvidia-persistenced remove > /dev/null
deb-systemd-helper purge nvidia-persistenced.service > /dev/null || true
"""
UNITS = "/usr/lib/systemd/system"
NVSWITCH = "/usr/share/nvidia/nvswitch"


def repository(version: str) -> list[Package]:
    """What NVIDIA's repository offers: the wanted version and a later one."""
    return _parts(version) + _parts(LATER)


def kernel(release: str) -> list[Package]:
    """A release of the kernel, what brings the next one, and the tools of both: Debian's, which a machine has already."""
    image, headers = f"linux-image-{release}", f"linux-headers-{release}"
    return [
        Package("dkms", "99.0-1", {"/usr/sbin/dkms": File(DKMS, 0o755)}),
        Package("initramfs-tools", "99.0-1", {"/usr/sbin/update-initramfs": File("#!/bin/sh\n", 0o755)}),
        Package(image, "1.0-1"),
        Package(headers, "1.0-1"),
        Package("linux-image-amd64", "1.0-1", depends=f"{image} (= 1.0-1)"),
    ]


def _parts(version: str) -> list[Package]:
    full = version + REVISION
    # A later part would do as well, as far as these say: it is the role that keeps them together.
    parts = ("nvidia-driver-cuda", "libcuda1", "libnvidia-cfg1", "nvidia-modprobe")
    needed = ", ".join(f"{name} (>= {full})" for name in (*parts, "nvidia-persistenced"))
    return [
        *(Package(name, full) for name in parts),
        _persistence_daemon(full),
        _fabric_manager(full),
        _modules("nvidia-kernel-open-dkms", version, "Open Kernel Module"),
        _modules("nvidia-kernel-dkms", version, "Kernel Module"),
        Package("nvidia-open", full, depends=f"nvidia-kernel-open-dkms (>= {full}), {needed}"),
        Package("cuda-drivers", full, depends=f"nvidia-kernel-dkms (>= {full}), {needed}"),
    ]


# The sources lie where upstream's do (seen of 570); its package depends on g++ as well, which nothing here would use.
def _modules(name: str, version: str, kind: str) -> Package:
    loader = "/usr/lib/nvidia/load"
    files = {
        f"/usr/src/nvidia-{version}/dkms.conf": File(
            f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n'
        ),
        "/etc/modprobe.d/nvidia.conf": File(f"install nvidia {loader}\n"),
        loader: File(LOAD.format(kind=kind, version=version), 0o755),
    }
    scripts = {"postinst": BUILD, "prerm": FORGET}
    return Package(name, version + REVISION, files, "dkms", scripts=scripts)


def _persistence_daemon(full: str) -> Package:
    name = "nvidia-persistenced"
    program = f"/usr/bin/{name}"
    files = {
        program: File(RUN.format(name=name), 0o755),
        f"{UNITS}/{name}.service": File(DAEMON.format(name=name, command=f"{program} --user {PERSISTENCE_ACCOUNT}")),
        f"/etc/init.d/{name}": File(RUNLEVELS.format(name=name), 0o755),
    }
    scripts = {"postinst": PERSISTENCE_BEGINS, "prerm": PERSISTENCE_ENDS, "postrm": PERSISTENCE_GONE}
    return Package(name, full, files, "libnvidia-cfg1, adduser", scripts=scripts)


def _fabric_manager(full: str) -> Package:
    name, settings = "nvidia-fabricmanager", f"{NVSWITCH}/fabricmanager.cfg"
    files = {
        "/usr/bin/nv-fabricmanager": File(RUN.format(name=name), 0o755),
        f"{UNITS}/{name}.service": File(DAEMON.format(name=name, command=f"/usr/bin/nv-fabricmanager -c {settings}")),
        settings: File("DAEMONIZE=1\n", conffile=True),
    }
    return Package(name, full, files)
