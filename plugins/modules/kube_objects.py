#!/usr/bin/python
"""Kubernetes objects brought to what a manifest says, by server-side apply, and waited for."""

from __future__ import annotations

import re
import tempfile
import time
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.kubectl import ADMIN, KUBECTL
from ..module_utils.waiter import Waiter

DOCUMENTATION = r"""
{"module": "kube_objects", "author": ["the project"], "short_description": "Applies a manifest server-side, only where the cluster differs from it, and waits until what it names is whole",
 "description": [
  "Asks the API server what would change (C(kubectl diff)) and applies only then.",
  "An object whose namespace or kind does not exist yet cannot be compared; applying it reports the error.",
  "An API server that is away, as one that restarts is for some seconds, or does not serve a kind of O(src) yet, is asked again for a minute.",
  "What does not come in time is explained by what its pods say, and by the end of their logs. A Job that has failed is not waited for any longer.",
  "In check mode nothing is applied or waited for, and a machine that has no cluster yet counts as different. Returns replicas: by workload how many it is to have."],
 "options": {
  "manifest": {"type": "str", "default": "", "description": "The manifest as text; empty to wait alone."},
  "src": {"type": "list", "elements": "path", "default": [], "description": "Files on the machine that are applied before it."},
  "workloads": {"type": "list", "elements": "str", "default": [], "description": "Workloads that have to be whole, as namespace/kind/name (DaemonSet Deployment StatefulSet Job). Their pods explain a failure."},
  "conditions": {"type": "dict", "default": {}, "description": "By what kubectl is asked for (C(nodes), C(kind/name)), the condition that all of it must have."},
  "allocatable": {"type": "dict", "default": {}, "description": "By node, how many of each extended resource it must have allocatable; exactly that and no other resource of the same domains."},
  "devices": {"type": "dict", "default": {}, "description": "By node, how many devices NVIDIA's DRA driver must list in ResourceSlices."},
  "timeout_s": {"type": "int", "default": 300, "description": "Seconds until all of it has to be so."}}}
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
AWAY_S, RETRY_S, REQUEST_S = 60.0, 3.0, 60


class Objects:
    """Objects of files, and the cluster that they go to."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def kubectl(self, verb: str, files: list[str], unserved: str = "") -> tuple[int, str, str]:
        """Runs one kubectl verb, again for a minute where nobody answers or what it says has `unserved`: exit status, stdout, stderr."""
        command = [KUBECTL, verb, "--server-side", "--force-conflicts", "--field-manager", MANAGER]
        command += ["--kubeconfig", ADMIN, "--request-timeout", f"{REQUEST_S}s"]
        command += [word for file in files for word in ("-f", file)]
        began_s = time.monotonic()
        while True:
            code, out, err = self.module.run_command(command)
            again = AWAY.search(err) or (unserved and unserved in err)
            if code == SAME or not again or time.monotonic() - began_s > AWAY_S:
                return code, out, err
            time.sleep(RETRY_S)

    def apply(self, files: list[str], unserved: str = "") -> None:
        """Applies; ends the module with the API server's own words when it is refused."""
        code, out, err = self.kubectl("apply", files, unserved)
        if code != 0:
            place = re.search(r'namespaces "([^"]+)" not found', err)
            first = f"Another part of site.yml makes the namespace {place[1]}: run that first" if place else ""
            self.module.fail_json(
                msg=f"the API server rejected the manifest: {(err or out).strip()}\n"
                f"{first or 'Fix what it names'}, then run again; objects applied before it are kept."
            )

    def bring(self, src: list[str], manifest: str) -> dict[str, Any]:
        """Brings all of it to what it should be; returns what the module answers."""
        # A file and not standard input: kubectl ends at the first object that it cannot find a place for, and the rest
        # of a long manifest would break the pipe instead of letting it say so.
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=self.module.tmpdir, encoding="utf-8") as file:
            file.write(manifest)
            file.flush()
            own = [file.name] if manifest else []
            code, out, _ = self.kubectl("diff", [*src, *own])
            if code == SAME:
                return {"changed": False}
            if src and not self.module.check_mode:
                self.apply(src)
            if own and not self.module.check_mode:
                # The API server needs a moment until it serves kinds that were just defined.
                self.apply(own, "no matches for kind" if src else "")
        return {"changed": True, **({"diff": {"prepared": out}} if code == DIFFERENT else {})}


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    asked = module.params
    result: dict[str, Any] = {"changed": False}
    if asked["src"] or asked["manifest"]:
        if module.check_mode and module.get_bin_path(KUBECTL) is None:
            module.exit_json(changed=True, msg="no kubectl on this machine yet: everything would be applied")
        result = Objects(module).bring(asked["src"], asked["manifest"])
    waiter = Waiter(module)
    if not module.check_mode:
        waiter.wait()
    module.exit_json(**result, replicas=waiter.replicas)


if __name__ == "__main__":
    main()
