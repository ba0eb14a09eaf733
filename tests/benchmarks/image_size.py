"""What an image weighs, layer by layer, what a pull of it takes, and how soon a replica made of it has served a request.

    python -m tests.benchmarks.image_size                          # the replicas' image; as root
    python -m tests.benchmarks.image_size --starts-of IMAGE --environment OMP_WAIT_POLICY=PASSIVE    # of buildah's own store: starts alone

As root on Debian or Ubuntu, with their buildah and docker-registry; packages come from where pip finds them. The image is built on --base, or on
this release's Python (debootstrap), which is not counted, and pushed to a registry of the folder's own on loopback. It is then pulled into an
empty store: as it is, after another line in one of our files, and after another version of one package. Layers that the builder has already are not
built again, so the seconds of a first build are printed where there was one. What was built stays in the machine's store; `buildah rmi` removes it.
Starts are those of ``python -m harness.replica`` on the CPU, in the pulled image by chroot (no namespaces, no GPU): first with none of the image's files in the
page cache, then with all that the start before left there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
NEEDED = ("buildah", "docker-registry")
DEBIAN_BASE = "localhost/gpu-sharing-harness/bench-base"
MB = 1e6
WAIT_S = 120.0
LOOK_S = 0.01
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars_files: [{role}/defaults/main.yml, {role}/vars/main.yml]
  vars: {{role_path: {role}, __versions_project: {role}/../..}}
  tasks:
    - ansible.builtin.copy: {{dest: {out}, content: "{{{{ __workload_image_context | to_json }}}}"}}
"""
"""Writes what the role makes the image of: content by name."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", help="Image with Python 3.11 or newer; default: this release's, made by debootstrap.")
    parser.add_argument("--package", default="idna==3.10", help="Another version of a package of the image's list.")
    parser.add_argument("--workload", default="resnet50", help="What the replicas serve.")
    parser.add_argument("--starts", type=int, default=5, help="With what the one before left in the page cache.")
    parser.add_argument(
        "--folder", type=Path, help="For registry and pulled image, twice its size; default: a temporary one."
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="For which requests are counted after the first.")
    parser.add_argument(
        "--environment", action="append", default=[], metavar="NAME=VALUE", help="Of the replicas, too."
    )
    parser.add_argument("--starts-of", metavar="IMAGE", help="Build and pull nothing: start replicas of this image.")
    arguments = parser.parse_args()
    given = {"WORKLOAD": arguments.workload, **dict(pair.split("=", 1) for pair in arguments.environment)}
    if arguments.starts_of:
        refuse_without(NEEDED[:1])
        print_starts(Store(None), arguments.starts_of, given, arguments.starts, arguments.seconds)
        return
    refuse_without(NEEDED if arguments.base else (*NEEDED, "debootstrap"))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="image-", dir=arguments.folder)))
        context = folder / "context"
        lay_out(context)
        name = f"{stack.enter_context(registry(folder))}/replicas"
        store = Store(folder / "pulled")
        stack.callback(store.remove)
        base = arguments.base or debian_base(folder)
        before: set[str] = set()
        for title, change in (
            ("as it is", lambda: None),
            ("another line of ours", lambda: add_a_line(context)),
            (f"with {arguments.package}", lambda: change_version(context, arguments.package)),
        ):
            change()
            built_s = timed(lambda: build(context, base, name))
            printed("buildah", "push", "--quiet", "--tls-verify=false", name)
            packed = packed_layers(name)
            pulled_s = timed(lambda: store.run("pull", "--quiet", "--policy=always", "--tls-verify=false", name))
            added = {digest: size for digest, size in packed.items() if digest not in before}
            print(
                f"{title}: built in {built_s:.0f} s; {sum(added.values()) / MB:,.1f} MB compressed pulled in {pulled_s:.1f} s"
            )
            if not before:
                print_layers(name, packed, base)
            before |= set(packed)
        print_starts(store, name, given, arguments.starts, arguments.seconds)


def refuse_without(programs: Sequence[str]) -> None:
    """Exit where one is missing, or where this is not root, with what to do."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        sys.exit(f"error: there is no {' and no '.join(missing)} here.\n  do: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        sys.exit("error: building and starting by chroot takes root.\n  do: run it as root, on a machine of your own.")


def lay_out(context: Path) -> None:
    """What roles/workload_image builds of."""
    play, files = context.parent / "play.yml", context.parent / "files.json"
    play.write_text(PLAY.format(role=ROOT / "roles/workload_image", out=files))
    tool = Path(sys.executable).with_name("ansible-playbook")
    printed(str(tool), "--inventory", str(ROOT / "inventory/hosts.yml"), "--limit", "localhost", str(play))
    for name, content in json.loads(files.read_text()).items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(content)


def add_a_line(context: Path) -> None:
    """To a file of ours."""
    with (context / "harness/replica/runner.py").open("a") as file:
        file.write("# Another line.\n")


def change_version(context: Path, pin: str) -> None:
    """Of a package on the image's list."""
    wanted, _, version = pin.partition("==")
    path = context / "requirements.txt"
    text, found = re.subn(rf"^{re.escape(wanted)}==\S+", f"{wanted}=={version}", path.read_text(), flags=re.MULTILINE)
    if not found:
        sys.exit(f"error: {wanted} is not on the image's list.\n  do: name another with --package NAME==VERSION.")
    path.write_text(str(text))


class Store:
    """Images and containers of their own, away from the machine's.

    Args:
        folder: to make, and to remove with ``remove``; None: the machine's, which is not removed.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.buildah = ["buildah"]
        if folder is not None:
            self.buildah += ["--root", str(folder / "root"), "--runroot", str(folder / "run")]

    def run(self, *words: str) -> str:
        """What a command of buildah prints."""
        return printed(*self.buildah, *words)

    def remove(self) -> None:
        """With everything in it; unmounted first."""
        assert self._folder is not None
        for words in (("rm", "--all"), ("rmi", "--all", "--force")):
            subprocess.run([*self.buildah, *words], capture_output=True, check=False, timeout=600)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry on loopback that keeps its layers in the folder; its address."""
    address = f"127.0.0.1:{free_port()}"
    settings = folder / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", settings], stdout=log, stderr=log)
    try:
        if answer(f"http://{address}/v2/", time.monotonic() + WAIT_S) is None:
            sys.exit(f"error: the registry did not answer.\n{(folder / 'registry.log').read_text()[-1000:]}")
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def debian_base(folder: Path) -> str:
    """This machine's release with a Python, as an image of the machine's own store; made once."""
    if not printed("buildah", "images", "--quiet", "--filter", f"reference={DEBIAN_BASE}"):
        release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
        assert release
        tree = folder / "base"
        printed(
            "debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", release[1], str(tree)
        )
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", tree / "etc/ssl/certs")  # a site's own authority is in it
        container = printed("buildah", "from", "scratch")
        printed("buildah", "add", "--quiet", container, str(tree), "/")
        printed("buildah", "commit", "--quiet", "--rm", container, DEBIAN_BASE)
        shutil.rmtree(tree)
    return DEBIAN_BASE


def build(context: Path, base: str, name: str) -> None:
    """As the role and images/Containerfile build; pip finds packages as it does on this machine."""
    settings = context.parent / "pip.conf"
    lines = (line.partition("=") for line in printed(sys.executable, "-m", "pip", "config", "list").splitlines())
    of_the_index = {key.rpartition(".")[2]: value.strip("'") for key, _, value in lines if "url" in key}
    settings.write_text(
        "[global]\n" + "".join(f"{key} = {value}\n" for key, value in of_the_index.items() if "file:" not in value)
    )
    words = ["--isolation=chroot", "--layers", "--format=oci", "--timestamp=0", f"--secret=id=pip.conf,src={settings}"]
    printed("buildah", "build", "--quiet", *words, f"--build-arg=BASE={base}", f"--tag={name}", str(context))


def packed_layers(name: str) -> dict[str, int]:
    """Bytes of each layer as the registry has it, compressed, by digest, lowest first."""
    host, _, path = name.partition("/")
    kind = "application/vnd.oci.image.manifest.v1+json"
    asked = urllib.request.Request(f"http://{host}/v2/{path}/manifests/latest", headers={"Accept": kind})
    with urllib.request.urlopen(asked, timeout=30) as answered:
        return {layer["digest"]: layer["size"] for layer in json.load(answered)["layers"]}


def print_layers(name: str, packed: dict[str, int], base: str) -> None:
    """A row for each layer above the base, and their sum."""
    inspected = json.loads(printed("buildah", "inspect", "--type", "image", name))
    below = len(json.loads(printed("buildah", "inspect", "--type", "image", base))["OCIv1"]["rootfs"]["diff_ids"])
    sizes = [layer["size"] for layer in json.loads(inspected["Manifest"])["layers"]]
    made_by = [step["created_by"] for step in inspected["OCIv1"]["history"] if not step.get("empty_layer")]
    rows = list(zip(made_by, sizes, packed.values(), strict=True))[below:]
    print(f"{'MB':>9} {'compressed':>10}  layer")
    for step, size, small in rows:
        print(f"{size / MB:9,.1f} {small / MB:10,.1f}  {' '.join(step.split())[:110]}")
    print(
        f"{sum(row[1] for row in rows) / MB:9,.1f} {sum(row[2] for row in rows) / MB:10,.1f}  together, without the base"
    )


def print_starts(store: Store, name: str, given: dict[str, str], starts: int, count_s: float) -> None:
    """Seconds from the start of a replica's process to three moments, and those that its threads computed, in a table."""
    print(
        "seconds (of them on a processor) to:  listening, model loaded, first request; then requests/s; load of the machine"
    )
    for number in range(starts + 1):
        container = store.run("from", "--pull-never", name)
        if number == 0:
            forget(Path(store.run("mount", container)))
        moments, rate = start(store, container, given, count_s)
        told = "  ".join(f"{passed_s:6.2f} ({computed_s:5.2f})" for passed_s, computed_s in moments)
        title = "none cached" if number == 0 else f"start {number}"
        print(f"{title:12} {told}  {rate:6.2f}  {os.getloadavg()[0]:.1f}", flush=True)
        store.run("rm", container)


def start(
    store: Store, container: str, given: dict[str, str], count_s: float
) -> tuple[list[tuple[float, float]], float]:
    """Run a replica until it has served a request after its warm-up, and ``count_s`` longer; seconds passed and computed at each moment, then requests per second."""
    port = free_port()
    environment = {"DEVICE": "cpu", "HOST": "127.0.0.1", "PORT": str(port), **given}
    words = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    begin_s = time.monotonic()
    command = [*store.buildah, "run", "--isolation=chroot", *words, container, "--", "python", "-m", "harness.replica"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            url, moments = f"http://127.0.0.1:{port}/health", []
            for reached in (
                lambda _: True,
                lambda now: now["phase"] not in {"starting", "loading"},
                lambda now: now["requests"] > 0,
            ):
                while True:
                    now = answer(url, begin_s + WAIT_S)
                    if now is None or process.poll() is not None:
                        said.seek(0)
                        sys.exit(f"error: the replica did not serve: {said.read().decode()[-2000:]}")
                    if reached(json.loads(now)):
                        break
                    time.sleep(LOOK_S)
                moments.append((time.monotonic() - begin_s, computed(process.pid)))
            first, at_s = json.loads(now)["requests"], time.monotonic()
            time.sleep(count_s)
            last = answer(url, at_s + WAIT_S)
            assert last is not None
            return moments, (json.loads(last)["requests"] - first) / (time.monotonic() - at_s)
        finally:
            process.terminate()
            process.wait(timeout=60)


def computed(starter: int) -> float:
    """Seconds of processors that the replica which a process started has taken."""
    replicas = [each for each in psutil.Process(starter).children(recursive=True) if not each.children()]
    return sum(sum(each.cpu_times()[:2]) for each in replicas)


def answer(url: str, last_s: float) -> bytes | None:
    """What is said there as soon as somebody listens, also with another code than 200; None: nobody until then."""
    while time.monotonic() < last_s:
        try:
            with urllib.request.urlopen(url, timeout=5) as answered:
                return bytes(answered.read())
        except urllib.error.HTTPError as error:
            return error.read()
        except OSError:
            time.sleep(LOOK_S)
    return None


def forget(tree: Path) -> None:
    """Take the files of a tree out of the page cache."""
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def printed(*words: str) -> str:
    """What a command prints; where it fails, exit with its last words."""
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=3600)
    if ran.returncode:
        sys.exit(
            f"error: {' '.join(words[:3])} ended with {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-2000:]}"
        )
    return ran.stdout.strip()


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begin_s = time.monotonic()
    action()
    return time.monotonic() - begin_s


if __name__ == "__main__":
    main()
