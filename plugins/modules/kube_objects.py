#!/usr/bin/python
"""Kubernetes objects brought to what a manifest says, by server-side apply."""

from __future__ import annotations

import re
import tempfile
import time
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.kubectl import ADMIN, KUBECTL

DOCUMENTATION = r"""
{"module": "kube_objects", "author": ["the project"], "short_description": "Applies a manifest server-side, only where the cluster differs from it",
 "description": [
  "Asks the API server what would change (C(kubectl diff)) and applies only then.",
  "An object whose namespace or kind does not exist yet cannot be compared; applying it reports the error.",
  "An API server that is away, as one that restarts is for some seconds, is asked again for a minute.",
  "In check mode nothing is applied, and a machine that has no cluster yet counts as different."],
 "options": {
  "manifest": {"type": "str", "description": "The manifest as text."},
  "src": {"type": "list", "elements": "path", "description": "The manifest as files on the machine."},
  "timeout_s": {"type": "int", "default": 60, "description": "Seconds for one request."}}}
"""

MANAGER = "node-provisioning"
SAME, DIFFERENT = 0, 1
# kubectl's words where the API server is away, or not all there yet: one that has just started forbids what it allows a few
# seconds later, and objects that could not be compared then were applied and called changed.
AWAY = re.compile(
    r"connection refused|was refused - did you specify|\bEOF\b|connection reset by peer|connection lost|no route to host"
    r"|TLS handshake timeout|i/o timeout|Client\.Timeout exceeded|context deadline exceeded|etcdserver: "
    r"|\(ServiceUnavailable\)|unable to handle the request|not yet ready to handle request|is forbidden: User |failed to download openapi"
)
AWAY_S, RETRY_S = 60.0, 3.0


class Objects:
    """One manifest and the cluster it goes to."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def kubectl(self, verb: str) -> tuple[int, str, str]:
        """Runs one kubectl verb with the manifest, again for a minute where nobody answers: exit status, stdout, stderr."""
        options = self.module.params
        command = [KUBECTL, verb, "--server-side", "--force-conflicts", "--field-manager", MANAGER]
        command += ["--kubeconfig", ADMIN, "--request-timeout", f"{options['timeout_s']}s"]
        began_s = time.monotonic()
        # A file and not standard input: kubectl ends at the first object that it cannot find a place for, and the rest
        # of a long manifest would break the pipe instead of letting it say so.
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=self.module.tmpdir, encoding="utf-8") as file:
            file.write(options["manifest"] or "")
            file.flush()
            sources = [word for source in options["src"] or [file.name] for word in ("-f", source)]
            while True:
                code, out, err = self.module.run_command([*command, *sources])
                if code == SAME or not AWAY.search(err) or time.monotonic() - began_s > AWAY_S:
                    return code, out, err
                time.sleep(RETRY_S)

    def apply(self) -> None:
        """Applies; ends the module with the API server's own words when it is refused."""
        code, out, err = self.kubectl("apply")
        if code != 0:
            place = re.search(r'namespaces "([^"]+)" not found', err)
            first = f"Another part of site.yml makes the namespace {place[1]}: run that first" if place else ""
            self.module.fail_json(
                msg=f"the API server rejected the manifest: {(err or out).strip()}\n"
                f"{first or 'Fix what it names'}, then run again; objects applied before it are kept."
            )


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION, mutually_exclusive=[("manifest", "src")], required_one_of=[("manifest", "src")])
    if module.check_mode and module.get_bin_path(KUBECTL) is None:
        module.exit_json(changed=True, msg="no kubectl on this machine yet: everything would be applied")
    objects = Objects(module)
    code, out, _ = objects.kubectl("diff")
    if code == SAME:
        module.exit_json(changed=False)
    if not module.check_mode:
        objects.apply()
    shown = {"diff": {"prepared": out}} if code == DIFFERENT else {}
    module.exit_json(changed=True, **shown)


if __name__ == "__main__":
    main()
