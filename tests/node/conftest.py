"""One image, one mirror and one dirty start per session; machines as tests ask for them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.node import dirty
from tests.node.machine import deps, image
from tests.node.machine.deps import Tools
from tests.node.machine.errors import DependencyError
from tests.node.machine.image import Disks
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.story import (  # noqa: F401 - fixtures
    again,
    cluster_stages,
    converged,
    converged_disks,
    machine,
    playbooks,
    snapshot,
    undisturbed,
)

# Set where these tests must run (CI): then a host that cannot boot a machine is a failure and not a skip.
REQUIRED_VARIABLE = "NODE_TEST_REQUIRED"
SUITE = os.environ.get("NODE_TEST_SUITE", "bookworm")
# The first test of a story waits for all that it begins with: generous, for a busy machine is several times slower.
TEST_WITHIN_S = 3600
# What is told on one machine, from the dirty one to the converged one and on; it comes first, for others begin with its
# converged disks. Beside it what needs nothing of it, then the longest first.
STORY = ["test_lifecycle.py", "test_reached_programs.py"]
ORDER = [*STORY, "test_other_suite.py", "test_worker.py", "test_bad_input.py", "test_interrupted.py", "test_upgrade.py"]


class Boot(Protocol):
    """Boots a machine from disks; name, beside: as for a Machine."""

    def __call__(self, source: Disks, *, name: str = "node", beside: Machine | None = None) -> Machine: ...


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    stories = [item for item in items if item.path.is_relative_to(here)]
    for item in stories:
        item.add_marker(pytest.mark.node)
        item.add_marker(pytest.mark.timeout(TEST_WITHIN_S))
    stories.sort(key=lambda item: ORDER.index(item.path.name) if item.path.name in ORDER else len(ORDER))
    items[:] = [item for item in items if item not in stories] + stories


class _Stories(LoadScopeScheduling):
    """One worker tells the story, and whoever is done takes the next other file."""

    def _split_scope(self, nodeid: str) -> str:
        name = Path(nodeid.partition("::")[0]).name
        return "story" if name in STORY else name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    # In the order of collection, not the longest file first.
    config.option.loadscopereorder = False
    return _Stories(config, log)


@pytest.fixture(scope="session", autouse=True)
def own_processors(worker_id: str) -> None:
    """Each worker keeps to its share of the processors: its machine waits while its Ansible works, and vice versa."""
    processors = sorted(os.sched_getaffinity(0))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker_id != "master" and workers <= len(processors):
        os.sched_setaffinity(0, processors[int(worker_id.removeprefix("gw")) :: workers])


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all workers of this session have in common."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


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
    with ExitStack() as stack:
        with deps.lock(tools.cache / "run.lock"):
            deps.remove_abandoned(runs)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=runs, ignore_cleanup_errors=True)))
            stack.enter_context(deps.lock(folder / "lock"))
        yield folder


@pytest.fixture(scope="session")
def disks(tools: Tools) -> Disks:
    return image.build(tools, SUITE)


@pytest.fixture(scope="session")
def mirror(tools: Tools, shared: Path) -> Iterator[Mirror]:
    with Mirror(tools, shared / "mirror") as mirror:
        yield mirror


@pytest.fixture(scope="session")
def dirty_disks(tools: Tools, disks: Disks, mirror: Mirror, scratch: Path) -> Disks:
    """The disks of a machine as earlier owners left it: what every test begins with."""
    with Machine(tools, disks, scratch / "first", mirror.port) as first:
        dirty.prepare(first, mirror, SUITE)
        return first.snapshot(scratch / "dirty", boot_again=False)


@pytest.fixture(scope="module")
def boot(tools: Tools, mirror: Mirror, scratch: Path) -> Iterator[Boot]:
    """Boot a machine from disks; all of them end with the module."""
    running: list[Machine] = []

    def start(source: Disks, *, name: str = "node", beside: Machine | None = None) -> Machine:
        folder = Path(tempfile.mkdtemp(dir=scratch, prefix="m"))
        booted = Machine(tools, source, folder, mirror.port, name=name, beside=beside)
        running.append(booted)
        booted.start()
        return booted

    yield start
    for each in reversed(running):
        each.__exit__()
