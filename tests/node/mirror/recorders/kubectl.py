"""Recorder of kubectl: applies to and reads from the recorded cluster. Needs a readable kubeconfig and a running server."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import access
import cluster
import remote
import yaml
from cluster import Kind, Object
from jsonpath import render
from recorded import CLUSTER_VERSION, fail, option, record, version_of

WITH_VALUE = {
    *("-n", "--namespace", "-o", "--output", "-f", "--filename", "-l", "--selector", "--kubeconfig", "--for", "--raw"),
    *("--timeout", "--field-manager", "--request-timeout", "-p", "--patch", "--type", "--context", "--field-selector"),
    *("--grace-period", "--template", "--sort-by", "-c", "--container", "--cascade", "--duration", "--tail"),
    "--tls-server-name",
}
DIFFERENT = 1


def main() -> None:
    arguments = sys.argv[1:]
    record("kubectl", arguments)
    words = positional(arguments)
    verb = words[0] if words else ""
    if verb == "version":
        version(arguments)
        return
    verbs: dict[str, Callable[[list[str], list[str]], None]] = {
        "apply": apply,
        "diff": diff,
        "get": get,
        "wait": wait,
        "rollout": rollout,
        "delete": delete,
        "label": change_metadata,
        "annotate": change_metadata,
        "taint": taint,
        "patch": patch,
        "cordon": cordon,
        "uncordon": cordon,
        "drain": drain,
        "top": top,
        "cluster-info": top,
        "config": access.config,
        "create": access.create,
        "auth": access.auth,
        "certificate": certificate,
        "logs": lambda *_: None,
    }
    if verb not in verbs:
        fail(f"this recorder does not know: kubectl {' '.join(arguments)}")
    server = require_kubeconfig(arguments)
    if not server.here:
        remote.kubectl(words, arguments, server)
        return
    cluster.require_api()
    if name := option(arguments, "--tls-server-name"):
        server.require_name(name)
    verbs[verb](words[1:], arguments)


def certificate(words: list[str], _: list[str]) -> None:
    # Here and below, for with what they import themselves they take a third of a call, and few calls need them.
    import serving

    serving.approve(words)


def positional(arguments: list[str]) -> list[str]:
    """Words that are neither options nor an option's value."""
    words = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.startswith("-") and argument != "-":
            skip = argument in WITH_VALUE
        else:
            words.append(argument)
    return words


def require_kubeconfig(arguments: list[str]) -> remote.Server:
    """Read the kubeconfig that kubectl would, and refuse as it does."""
    default = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")
    named = option(arguments, "--kubeconfig", default="")
    path = Path(named or default)
    try:
        return remote.Server.of(path)
    except PermissionError:
        fail(f'error: error loading config file "{path}": open {path}: permission denied')
    except FileNotFoundError:
        if named:
            fail(f"error: stat {path}: no such file or directory")
        fail("The connection to the server localhost:8080 was refused - did you specify the right host or port?")


def namespace_of(arguments: list[str]) -> str:
    """The namespace asked for."""
    return option(arguments, "-n", "--namespace", default="default")


def manifests(arguments: list[str]) -> list[Object]:
    """Every object of every file named with -f, lists unpacked."""
    files = [arguments[at + 1] for at, word in enumerate(arguments) if word in {"-f", "--filename"}]
    files += [word.partition("=")[2] for word in arguments if word.startswith(("-f=", "--filename="))]
    found: list[Object] = []
    for name in files:
        if name != "-" and not Path(name).exists():
            fail(f'error: the path "{name}" does not exist')
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        # A dashboard takes the loader in Python a second here.
        for document in yaml.load_all(text, yaml.CSafeLoader):
            if document:
                found += document["items"] if document.get("kind") == "List" else [document]
    return found


def apply(_: list[str], arguments: list[str]) -> None:
    server_side = any(word.startswith("--server-side") for word in arguments)
    for item in manifests(arguments):
        record("kubectl-applied", [json.dumps(item)])
        stored, wanted = cluster.merged(item, namespace_of(arguments))
        if not any(word.startswith("--dry-run=server") for word in arguments) and stored != wanted:
            cluster.write(wanted)
        done = "created" if stored is None else "unchanged" if stored == wanted else "configured"
        name = f"{cluster.kind_of_object(item).label}/{item['metadata']['name']}"
        print(f"{name} {'serverside-applied' if server_side else done}")


def diff(_: list[str], arguments: list[str]) -> None:
    import difflib

    different = False
    for item in manifests(arguments):
        stored, wanted = cluster.merged(item, namespace_of(arguments))
        if stored != wanted:
            different = True
            before = [] if stored is None else json.dumps(stored, indent=1, sort_keys=True).splitlines()
            after = json.dumps(wanted, indent=1, sort_keys=True).splitlines()
            print("\n".join(difflib.unified_diff(before, after, "live", "merged", lineterm="")))
    raise SystemExit(DIFFERENT if different else 0)


def get(words: list[str], arguments: list[str]) -> None:
    if raw := option(arguments, "--raw"):
        import serving

        said = serving.answer(raw)
        if said is None:
            said = "ok" if raw.startswith(("/readyz", "/livez", "/healthz")) else "{}"
        print(said)
        return
    missing = "--ignore-not-found" in arguments or "--ignore-not-found=true" in arguments
    found, single = targets(words, arguments, missing_allowed=missing)
    show(found, arguments, single=single)


def targets(words: list[str], arguments: list[str], *, missing_allowed: bool = False) -> tuple[list[Object], bool]:
    """The objects that words such as `ds calico-node`, `node/one` or `pods` mean, and whether it is one by name."""
    everywhere = bool({"-A", "--all-namespaces"} & set(arguments))
    place = namespace_of(arguments)
    named: list[tuple[Kind, str]] = []
    if words and "/" in words[0]:
        named = [(cluster.kind_of(word.partition("/")[0]), word.partition("/")[2]) for word in words]
    elif len(words) > 1:
        named = [(cluster.kind_of(words[0]), name) for name in words[1:]]
    if not named:
        kinds = [cluster.kind_of(word) for word in words[0].split(",")] if words else []
        listed = [item for kind in kinds for item in cluster.listing(kind, None if everywhere else place)]
        return [item for item in listed if selected(item, arguments)], False
    found = []
    for kind, name in named:
        item = cluster.read(kind, place, name)
        if item is None and not missing_allowed:
            plural = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            fail(f'Error from server (NotFound): {plural} "{name}" not found')
        found += [item] if item is not None else []
    return found, len(named) == 1


def selected(item: Object, arguments: list[str]) -> bool:
    """Whether an object's labels fit the selector (`a=b,c!=d,e`) and its fields theirs."""
    labels = item["metadata"].get("labels", {})
    for term in filter(None, option(arguments, "-l", "--selector").split(",")):
        name, equals, value = term.replace("==", "=").partition("=")
        if name.endswith("!"):
            if labels.get(name.removesuffix("!")) == value:
                return False
        elif name not in labels or (equals and labels[name] != value):
            return False
    fields = {"metadata.name": item["metadata"]["name"], "spec.nodeName": item.get("spec", {}).get("nodeName", "")}
    fields |= {f"status.{name}": str(value) for name, value in item.get("status", {}).items()}
    fields["status.successful"] = str(item.get("status", {}).get("succeeded", 0))
    for term in filter(None, option(arguments, "--field-selector").split(",")):
        name, _, value = term.replace("==", "=").partition("=")
        if (fields.get(name.removesuffix("!"), "") == value) is name.endswith("!"):
            return False
    return True


def show(found: list[Object], arguments: list[str], *, single: bool) -> None:
    """Print objects the way -o says."""
    form = option(arguments, "-o", "--output")
    whole: Object = {"apiVersion": "v1", "kind": "List", "items": found}
    if single:
        whole = found[0] if found else {}
    if not whole:
        return
    if form == "json":
        print(json.dumps(whole))
    elif form == "yaml":
        print(yaml.safe_dump(whole))
    elif form.startswith("jsonpath="):
        sys.stdout.write(render(form.removeprefix("jsonpath=").strip("'"), whole))
    else:
        for item in found:
            label = cluster.kind_of_object(item).label
            print(f"{label}/{item['metadata']['name']}" if form == "name" else f"{item['metadata']['name']}   Ready")


def wait(words: list[str], arguments: list[str]) -> None:
    wanted = option(arguments, "--for")
    if wanted == "delete":
        return
    found, _ = targets(words, arguments)
    if not found:
        fail("error: no matching resources found")
    name, _, value = wanted.removeprefix("condition=").partition("=")
    for item in found:
        conditions = {one["type"].lower(): one["status"] for one in item.get("status", {}).get("conditions", ())}
        label = f"{cluster.kind_of_object(item).label}/{item['metadata']['name']}"
        if wanted.startswith("condition=") and conditions.get(name.lower(), "").lower() != (value or "true").lower():
            fail(f"error: timed out waiting for the condition on {label}")
        print(f"{label} condition met")


def rollout(words: list[str], arguments: list[str]) -> None:
    found, _ = targets(words[1:], arguments)
    for item in found:
        print(f'{item["kind"].lower()} "{item["metadata"]["name"]}" successfully rolled out')


def delete(words: list[str], arguments: list[str]) -> None:
    missing = any(word.startswith("--ignore-not-found") for word in arguments)
    found = targets(words, arguments, missing_allowed=missing)[0] if words else manifests(arguments)
    for item in found:
        kind = cluster.kind_of_object(item)
        place = item["metadata"].get("namespace", namespace_of(arguments))
        if cluster.delete(kind, place, item["metadata"]["name"]):
            print(f'{kind.label} "{item["metadata"]["name"]}" deleted')
        elif not missing:
            fail(f'Error from server (NotFound): {kind.plural} "{item["metadata"]["name"]}" not found')


def change_metadata(words: list[str], arguments: list[str]) -> None:
    part = "labels" if positional(arguments)[0] == "label" else "annotations"
    pairs = [word for word in words if "=" in word or word.endswith("-")]
    found, _ = targets([word for word in words if word not in pairs], arguments)
    for item in found:
        entries = item["metadata"].setdefault(part, {})
        before = dict(entries)
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals:
                entries.pop(name.removesuffix("-"), None)
            elif entries.get(name, value) != value and "--overwrite" not in arguments:
                fail(f"error: '{name}' already has a value ({entries[name]}), and --overwrite is false")
            else:
                entries[name] = value
        cluster.write(item)
        verb = "not labeled" if before == entries else "labeled"
        print(f"{cluster.kind_of_object(item).label}/{item['metadata']['name']} {verb}")


def taint(words: list[str], arguments: list[str]) -> None:
    removed = [word.removesuffix("-").partition(":")[0] for word in words if word.endswith("-")]
    found, _ = targets([word for word in words if not word.endswith("-") and "=" not in word], arguments)
    for item in found:
        taints = item["spec"].get("taints") or []
        kept = [one for one in taints if one["key"] not in removed]
        if len(kept) == len(taints):
            fail(f'error: taint "{removed[0] if removed else ""}" not found')
        item["spec"]["taints"] = kept
        cluster.write(item)
        print(f"node/{item['metadata']['name']} untainted")


def patch(words: list[str], arguments: list[str]) -> None:
    change = json.loads(option(arguments, "-p", "--patch"))
    found, _ = targets(words, arguments)
    for item in found:
        base = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": item["metadata"]}
        change["metadata"] = base["metadata"] | change.get("metadata", {})
        stored, wanted = cluster.merged(base | change, namespace_of(arguments))
        wanted = without_null(wanted)
        cluster.write(wanted)
        suffix = " (no change)" if stored == wanted else ""
        print(f"{cluster.kind_of_object(item).label}/{item['metadata']['name']} patched{suffix}")


def without_null(value: Any) -> Any:
    """What a merge patch leaves: an entry that it sets to null is gone."""
    if not isinstance(value, dict):
        return value
    return {key: without_null(one) for key, one in value.items() if one is not None}


def drain(words: list[str], arguments: list[str]) -> None:
    """Cordon, then evict what is no DaemonSet's and no manifest's, as far as the budgets allow it."""
    cordon(words, ["drain"])
    leaving = [pod for pod in cluster.listing(cluster.kind_of("pod"), None) if cluster.can_leave(pod, words[0])]
    for pod in leaving:
        place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if not pod["metadata"].get("ownerReferences") and "--force" not in arguments:
            fail(f"error: cannot delete Pods declare no controller (use --force to override): {place}/{name}")
        if kept := [one for one in cluster.budgets(pod) if one["status"]["disruptionsAllowed"] < 1]:
            fail(
                f"error when evicting pods/{name!r}: it would violate the disruption budget {kept[0]['metadata']['name']}"
            )
        cluster.delete(cluster.kind_of("pod"), place, name)
        print(f"pod/{name} evicted")
    print(f"node/{words[0]} drained")


def cordon(words: list[str], arguments: list[str]) -> None:
    verb = positional(arguments)[0]
    node = cluster.kind_of("node")
    for name in words:
        item = cluster.read(node, "", name.removeprefix("node/"))
        if item is None:
            fail(f'Error from server (NotFound): nodes "{name}" not found')
        item["spec"]["unschedulable"] = verb != "uncordon"
        cluster.write(item)
        print(f"node/{name} {verb}ed")


def top(words: list[str], _: list[str]) -> None:
    if words[:1] in (["nodes"], ["node"]):
        found = cluster.listing(cluster.kind_of("nodes.metrics.k8s.io"), None)
        if not found:
            fail("error: Metrics API not available")
        for item in found:
            print(f"{item['metadata']['name']}   {item['usage']['cpu']}   5%   {item['usage']['memory']}   25%")


def version(arguments: list[str]) -> None:
    known = {"clientVersion": {"gitVersion": f"v{version_of('kubectl')}"}}
    if "--client" not in arguments and "--client=true" not in arguments:
        require_kubeconfig(arguments)
        cluster.require_api()
        known["serverVersion"] = {"gitVersion": CLUSTER_VERSION.read_text()}
    if option(arguments, "-o", "--output") == "json":
        print(json.dumps(known))
    else:
        for name, value in known.items():
            print(f"{name.removesuffix('Version').capitalize()} Version: {value['gitVersion']}")
