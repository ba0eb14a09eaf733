"""What experiments need of a cluster: the image, a closed place for replicas, and an account for the harness."""

from __future__ import annotations

import json

from harness.node.checks.registry import CONTROL_PLANE, CannotLookError, Node, Observation, check, listed

_HERE = (CONTROL_PLANE,)
_HOME_FIELD = 5


@check(
    "workloads/image",
    advice="Run playbooks/workloads.yml again: it builds the image where it is not there.",
    unit="crio.service",
)
def workload_image_is_there(node: Node) -> Observation:
    """CRI-O has the image that replicas run in."""
    try:
        images = json.loads(node.output("crictl", "images", "--output=json"))["images"]
    except (ValueError, KeyError, TypeError) as error:
        raise CannotLookError(f"crictl gave no list of images: {error}") from error
    tags = {tag for image in images for tag in image.get("repoTags") or ()}
    wanted = node.expected.workload_image
    ours = sorted(tag for tag in tags if tag.startswith(wanted.rpartition(":")[0]))
    return Observation(wanted in tags, wanted, listed(ours))


@check("workloads/namespace", advice="Run playbooks/workloads.yml again (--tags inference_namespace).", kinds=_HERE)
def replicas_have_a_closed_place(node: Node) -> Observation:
    """Replicas have a namespace that takes unprivileged pods only and lets nobody in but Prometheus."""
    name = node.expected.namespace
    levels = {
        item["metadata"]["name"]: item["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce", "none")
        for item in node.objects("namespaces")
    }
    if name not in levels:
        return Observation(False, f"namespace {name}, restricted, with a network policy", "no such namespace")
    policies = [item["metadata"]["name"] for item in node.objects("networkpolicies", "--namespace", name)]
    found = f"pod security {levels[name]}, network policies: {listed(policies)}"
    good = levels[name] == "restricted" and bool(policies)
    return Observation(good, f"namespace {name}, restricted, with a network policy", found)


@check("workloads/account", advice="Run playbooks/workloads.yml again: it renews the account's token.", kinds=_HERE)
def harness_can_come_in(node: Node) -> Observation:
    """Each user has the harness's own kubeconfig, mode 0600, and it is let in."""
    found, ok = [], True
    for user in node.expected.harness_users:
        home = node.output("getent", "passwd", user).split(":")[_HOME_FIELD]
        path = f"{home}/.kube/harness.conf"
        state = node.machine.stat(path)
        closed = state is not None and state.mode == 0o600 and state.owner == user
        words = ("auth", "can-i", "create", "deployments.apps", f"--namespace={node.expected.namespace}")
        answer = node.machine.command("kubectl", f"--kubeconfig={path}", "--request-timeout=15s", *words)
        said = (answer.stdout or answer.stderr).strip().splitlines()[-1:] or ["nothing"]
        found.append(f"{path} {f'{state.mode:04o} {state.owner}' if state else 'absent'}, may: {said[0]}")
        ok = ok and closed and answer.stdout.strip() == "yes"
    return Observation(ok, "mode 0600, the user's own, may create deployments", "; ".join(found))
