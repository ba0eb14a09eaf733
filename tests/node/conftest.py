"""One image, one mirror and one dirty start per session; machines as tests ask for them."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import dirty
from tests.node.machine import deps, image
from tests.node.machine.deps import Tools
from tests.node.machine.errors import DependencyError
from tests.node.machine.image import USER, Disks
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks

# Set where these tests must run (CI): then a host that cannot boot a machine is a failure and not a skip.
REQUIRED_VARIABLE = "NODE_TEST_REQUIRED"
SUITE = os.environ.get("NODE_TEST_SUITE", "bookworm")
TEST_WITHIN_S = 1200

# What this machine cannot show, told to the roles and to nobody else.
MACHINE_VARIABLES: dict[str, Any] = {
    "preflight_psi_required": False,
    "preflight_cpus_min": 1,
    "nvidia_toolkit_gpu": "assumed",
    "control_plane_kubeadm_ignore_preflight_errors": ["NumCPU"],
}

Boot = Callable[[Disks], Machine]
MakePlaybooks = Callable[..., Playbooks]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.node)
            item.add_marker(pytest.mark.timeout(TEST_WITHIN_S))
            item.add_marker(pytest.mark.xdist_group("node"))


@pytest.fixture(scope="session")
def tools() -> Tools:
    try:
        return deps.ensure()
    except DependencyError as error:
        if os.environ.get(REQUIRED_VARIABLE):
            raise
        pytest.skip(f"no machine can be booted here: {error}")


@pytest.fixture(scope="session")
def scratch(tools: Tools) -> Iterator[Path]:
    """A short path for disks and sockets (a socket's path may have 107 characters), removed at the end."""
    runs = tools.cache / "run"
    runs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=runs, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def disks(tools: Tools) -> Disks:
    return image.build(tools, SUITE)


@pytest.fixture(scope="session")
def mirror(tools: Tools, scratch: Path) -> Iterator[Mirror]:
    with Mirror(tools, scratch / "mirror") as mirror:
        yield mirror


@pytest.fixture(scope="session")
def dirty_disks(tools: Tools, disks: Disks, mirror: Mirror, scratch: Path) -> Disks:
    """The disks of a machine as earlier owners left it: what every test begins with."""
    with Machine(tools, disks, scratch / "first") as machine:
        dirty.prepare(machine, mirror, SUITE)
        return machine.snapshot(scratch / "dirty", boot_again=False)


@pytest.fixture(scope="module")
def boot(tools: Tools, scratch: Path) -> Iterator[Boot]:
    """Boot a machine from disks; all of them end with the module."""
    running: list[Machine] = []

    def start(source: Disks) -> Machine:
        machine = Machine(tools, source, Path(tempfile.mkdtemp(dir=scratch, prefix="m")))
        running.append(machine)
        machine.start()
        return machine

    yield start
    for machine in running:
        machine.__exit__()


@pytest.fixture(scope="session")
def playbooks_for(mirror: Mirror) -> MakePlaybooks:
    """Playbooks of a machine, everything fetched from the local mirrors; host variables as keyword arguments."""

    def make(machine: Machine, **variables: Any) -> Playbooks:
        return Playbooks(machine, {"ansible_user": USER} | mirror.variables() | MACHINE_VARIABLES | variables)

    return make
