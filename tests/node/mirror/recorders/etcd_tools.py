"""etcdctl and etcdutl, as they lie in etcd's own image: a snapshot is the recorded objects, and a restored one is read at the start."""

import json
import shutil
import sys
from pathlib import Path

from recorded import STATE, fail, option, record

OBJECTS = STATE / "objects"
TOOLS = STATE / "etcd-tools"
DATABASE = Path("member/snap/db")
_SWITCHES = "--debug --hex --insecure-discovery --insecure-skip-tls-verify --insecure-transport --skip-hash-check --mark-compacted"
"""Flags that take their value after = alone; the others take the next word, too."""
_CLIENT = (
    "--cacert --cert --command-timeout --debug --dial-timeout --discovery-srv --discovery-srv-name --endpoints --hex"
    " --insecure-discovery --insecure-skip-tls-verify --insecure-transport --keepalive-time --keepalive-timeout --key"
    " --password --user --write-out -w"
)
_OFFLINE = "--timeout --write-out -w"
_RESTORED = (
    "--data-dir --wal-dir --initial-cluster --initial-cluster-token --initial-advertise-peer-urls --name --skip-hash-check"
    " --initial-memory-map-size --bump-revision --mark-compacted"
)
FLAGS = {
    ("etcdctl", "save"): frozenset(_CLIENT.split()),
    ("etcdutl", "status"): frozenset(_OFFLINE.split()),
    ("etcdutl", "restore"): frozenset(f"{_OFFLINE} {_RESTORED}".split()),
}
"""What etcd 3.6 knows for each command."""


def main() -> None:
    arguments, name = sys.argv[1:], Path(sys.argv[0]).name
    record(name, arguments)
    verbs = {("etcdctl", "save"): save, ("etcdutl", "status"): status, ("etcdutl", "restore"): restore}
    if arguments[:1] != ["snapshot"] or (name, "".join(arguments[1:2])) not in verbs:
        fail(f"this recorder does not know: {name} {' '.join(arguments)}")
    paths = words_of(arguments[2:], FLAGS[name, arguments[1]])
    if len(paths) != 1:
        fail(f"Error: snapshot {arguments[1]} requires exactly one argument")
    verbs[name, arguments[1]](Path(paths[0]), arguments)


def words_of(arguments: list[str], known: frozenset[str]) -> list[str]:
    """What is no flag; a flag that the original does not know is refused in its words."""
    words, left = [], iter(arguments)
    for word in left:
        if not word.startswith("-"):
            words.append(word)
            continue
        flag, given, _ = word.partition("=")
        if flag not in known:
            fail(f"Error: unknown flag: {flag}")
        if not given and flag not in _SWITCHES.split() and next(left, None) is None:
            fail(f"Error: flag needs an argument: {flag}")
    return words


def save(path: Path, arguments: list[str]) -> None:
    """Everything that is stored, to who shows a certificate."""
    missing = [name for name in ("--cacert", "--cert", "--key") if not Path(option(arguments, name)).is_file()]
    if missing:
        fail(f"Error: open {', '.join(missing)}: no such file or directory")
    found = {str(one.relative_to(OBJECTS)): one.read_text() for one in OBJECTS.glob("*/*/*.json")}
    path.write_text(json.dumps(found))


def status(path: Path, _: list[str]) -> None:
    """What a snapshot holds."""
    print(json.dumps({"hash": 1, "revision": 7, "totalKey": len(json.loads(path.read_text())), "totalSize": 1}))


def restore(path: Path, arguments: list[str]) -> None:
    """A data folder of a snapshot; one that is there is refused, and so is a later revision without its compaction."""
    if option(arguments, "--bump-revision") not in ("", "0") and "--mark-compacted" not in arguments:
        fail("Error: --mark-compacted required if --bump-revision")
    folder = Path(option(arguments, "--data-dir"))
    if folder.exists():
        fail(f'Error: data-dir "{folder}" not empty or could not be read')
    (folder / DATABASE).parent.mkdir(parents=True)
    shutil.copyfile(path, folder / DATABASE)


def load(folder: Path) -> None:
    """What etcd does with a restored data folder when it starts: its objects are the cluster's."""
    path = folder / DATABASE
    if not path.exists():
        return
    shutil.rmtree(OBJECTS)
    for name, text in json.loads(path.read_text()).items():
        place = OBJECTS / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o666)
    for parent in (OBJECTS, *OBJECTS.rglob("*")):
        if parent.is_dir():
            parent.chmod(0o777)
    path.unlink()


def install() -> None:
    """Put both where the container's own folder of programs is made of."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    for name in ("etcdctl", "etcdutl"):
        here = Path(__file__).parent
        launcher = (
            f'#!/usr/bin/python3\nimport sys\nsys.path.insert(0, "{here}")\nimport etcd_tools\netcd_tools.main()\n'
        )
        (TOOLS / name).write_text(launcher)
        (TOOLS / name).chmod(0o755)
