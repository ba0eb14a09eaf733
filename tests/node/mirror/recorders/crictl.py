"""Recorder of crictl: talks to nobody, keeps a list of images, and needs the runtime's socket to answer."""

import json
import sys
from pathlib import Path

from buildah import BUILT
from recorded import CRIO_SOCKET, STATE, answers, fail, record, version_of

MANIFESTS = Path("/etc/kubernetes/manifests")
IMAGES = STATE / "images.json"


def main() -> None:
    arguments = sys.argv[1:]
    record("crictl", arguments)
    if "--version" in arguments:
        print(f"crictl version v{version_of('cri-tools')}")
        return
    if not answers(str(CRIO_SOCKET)):
        fail(f'level=fatal msg="validate service connection: dial unix {CRIO_SOCKET}: connect: connection refused"')
    words = positional(arguments)
    verb = words[0] if words else ""
    images = json.loads(IMAGES.read_text()) if IMAGES.exists() else []
    if verb == "pull":
        IMAGES.write_text(json.dumps(sorted({*images, words[-1]})))
        print(f"Image is up to date for {words[-1]}")
    elif verb in {"images", "img"}:
        built = json.loads(BUILT.read_text()) if BUILT.exists() else []
        found = [{"id": name, "repoTags": [name]} for name in images]
        print(json.dumps({"images": found + [{"id": one["id"], "repoTags": one["names"]} for one in built]}))
    elif verb == "rmi":
        IMAGES.write_text(json.dumps([name for name in images if name not in words[1:]]))
    elif verb == "info":
        print(json.dumps(info()))
    elif verb == "version":
        print(f"Version:  0.1.0\nRuntimeName:  cri-o\nRuntimeVersion:  {version_of('cri-tools')}")
    elif verb in {"ps", "pods"}:
        print(running(quiet="--quiet" in arguments))
    elif verb not in {"stopp", "rmp", "stop", "rm"}:
        fail(f"this recorder does not know: crictl {' '.join(arguments)}")


def positional(arguments: list[str]) -> list[str]:
    """Words that are neither options nor the value of one that takes a value."""
    words = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.startswith("-"):
            skip = argument in {
                "--runtime-endpoint",
                "-r",
                "--image-endpoint",
                "-i",
                "--timeout",
                "-t",
                "-o",
                "--output",
            }
        else:
            words.append(argument)
    return words


def running(*, quiet: bool) -> str:
    """The identities of the static pods' containers, whatever name was asked for; else none."""
    names = [path.stem for path in sorted(MANIFESTS.glob("*.yaml"))]
    return "\n".join(names) if quiet else json.dumps({"containers": [], "items": []})


def info() -> dict[str, object]:
    """Report what the running daemon loaded."""
    loaded = json.loads((STATE / "crio-loaded.json").read_text())
    conditions = [
        {"type": "RuntimeReady", "status": True},
        {"type": "NetworkReady", "status": bool(loaded["cni"])},
    ]
    handlers = [{"name": name} for name in sorted(loaded["handlers"])]
    return {"status": {"conditions": conditions}, "runtimeHandlers": handlers, "config": loaded}
