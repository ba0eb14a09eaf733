"""etcdctl and etcdutl, as they lie in etcd's own image: a snapshot is the recorded objects, and a restored one is read at the start."""

import json
import shutil
import sys
from pathlib import Path

from recorded import STATE, fail, option, record

OBJECTS = STATE / "objects"
TOOLS = STATE / "etcd-tools"
DATABASE = Path("member/snap/db")


def main() -> None:
    arguments, name = sys.argv[1:], Path(sys.argv[0]).name
    record(name, arguments)
    words = [word for word in arguments if not word.startswith("-")]
    verbs = {("etcdctl", "save"): save, ("etcdutl", "status"): status, ("etcdutl", "restore"): restore}
    if words[:1] != ["snapshot"] or (name, words[1]) not in verbs:
        fail(f"this recorder does not know: {name} {' '.join(arguments)}")
    verbs[name, words[1]](Path(words[2]), arguments)


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
    """A data folder of a snapshot; one that is there is refused."""
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
