"""Recorder of buildah: builds nothing, and keeps what would be in the store, where CRI-O's recorder finds it.

It refuses what the original refuses: a context without a Containerfile, a source that is not there.
"""

import hashlib
import json
import sys
from pathlib import Path

from recorded import fail, option, record

BUILT = Path("/var/lib/containers/storage/recorded-built.json")


def main() -> None:
    arguments = sys.argv[1:]
    record("buildah", arguments)
    verb = arguments[0] if arguments else ""
    if verb in {"build", "bud"}:
        build(arguments)
    elif verb == "images":
        label = option(arguments, "--filter").removeprefix("label=")
        print(
            json.dumps(
                [{key: one[key] for key in ("id", "digest", "names")} for one in built() if label in one["labels"]]
            )
        )
    else:
        fail(f"this recorder does not know: buildah {' '.join(arguments)}")


def built() -> list[dict[str, object]]:
    """Every image that was built here."""
    found: list[dict[str, object]] = json.loads(BUILT.read_text()) if BUILT.exists() else []
    return found


def build(arguments: list[str]) -> None:
    """Check the context, then keep the image under its name."""
    context = Path(arguments[-1])
    if not (context / "Containerfile").exists():
        fail(f"Error: no contents in {str(context / 'Containerfile')!r}")
    for line in (context / "Containerfile").read_text().splitlines():
        if line.startswith("COPY ") and not (context / line.split()[1]).exists():
            fail(f"Error: building at STEP {line!r}: no such file or directory")
    labels = [word.removeprefix("--label=") for word in arguments if word.startswith("--label=")]
    identity = hashlib.sha256(json.dumps(labels).encode()).hexdigest()
    name = option(arguments, "--tag", "-t")
    others = [one | {"names": [tag for tag in one["names"] if tag != name]} for one in built()]  # type: ignore[attr-defined]
    image = {"id": identity[:12], "digest": f"sha256:{identity}", "names": [name], "labels": labels}
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    BUILT.write_text(json.dumps([*others, image]))
