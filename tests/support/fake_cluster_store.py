"""The objects of the fake API server: versions, generations, selectors, events, graceful deletion."""

from __future__ import annotations

import copy
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

_PATH = re.compile(
    r"^/(?P<group>api/v1|apis/[^/]+/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>.+))?)?$"
)
KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "namespaces": "Namespace",
    "events": "Event",
    "services": "Service",
    "deployments": "Deployment",
    "jobs": "Job",
    "runtimeclasses": "RuntimeClass",
    "configmaps": "ConfigMap",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "resourceslices": "ResourceSlice",
    "deviceclasses": "DeviceClass",
}
FOREGROUND = "foregroundDeletion"
"""The finalizer that the garbage collector takes off, once what an object owned is gone."""
SLICE_S = 0.5
"""A watch looks at its time this often."""


class Refusal(Exception):  # noqa: N818 - an answer, not an error of ours
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        """As the API says it."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    group: str
    namespace: str
    resource: str
    name: str = ""
    subresource: str = ""

    def named(self, name: str) -> Target:
        """The object itself under another name."""
        return replace(self, name=name, subresource="")


def parse_path(path: str) -> Target:
    """Read a path of the API. Raises Refusal for one that there is not."""
    match = _PATH.match(path)
    if match is None:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    return Target(match["group"], match["namespace"] or "", match["resource"], match["name"] or "", match["sub"] or "")


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    key: tuple[str, str, str]
    one: Object


@dataclass(slots=True)
class Store:
    """All objects, and what happened to them; what was stored is never changed, so that nothing needs to be copied.

    Attributes:
        forgotten: versions up to this one cannot be watched from any more: such a watch has expired.
    """

    forgotten: int = 0
    _version: int = 0
    _objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    _events: list[_Event] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def close(self) -> None:
        """End all watches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def expire(self) -> None:
        """Forget the past: every watch that is not up to date has to list again."""
        with self._changed:
            self.forgotten = self._version

    def get(self, target: Target) -> Object:
        """One object. Raises Refusal."""
        with self._changed:
            return self._found(target)

    def has(self, target: Target) -> bool:
        """Whether there is such an object."""
        with self._changed:
            return (target.resource, target.namespace, target.name) in self._objects

    def listing(self, target: Target, query: Mapping[str, str]) -> Object:
        """The objects of a collection that match."""
        with self._changed:
            items = [one for key, one in sorted(self._objects.items()) if _within(target, key)]
            version = str(self._version)
        kind = KINDS.get(target.resource, target.resource)
        return {
            "kind": f"{kind}List",
            "apiVersion": _api_version(target),
            "metadata": {"resourceVersion": version},
            "items": [one for one in items if selected(one, query)],
        }

    def create(self, target: Target, body: Object) -> Object:
        """A new object. Raises Refusal when its name is taken."""
        name = str(body["metadata"].get("name") or f"{body['metadata'].get('generateName')}{uuid.uuid4().hex[:5]}")
        with self._changed:
            key = (target.resource, target.namespace, name)
            if key in self._objects:
                raise Refusal(409, "AlreadyExists", f'{target.resource} "{name}" already exists')
            return self._made(target.named(name), body)

    def apply(self, target: Target, body: Object) -> Object:
        """Server-side apply with one manager: the fields given are merged, lists replaced."""
        with self._changed:
            if not self.has(target):
                return self._made(target, body)
        return self.merge(target, body)

    def merge(self, target: Target, body: Object) -> Object:
        """A merge patch, of the status alone or of everything else. Raises Refusal."""
        with self._changed:
            old = self._found(target)
            expected = (body.get("metadata") or {}).get("resourceVersion")
            if expected is not None and expected != old["metadata"]["resourceVersion"]:
                raise Refusal(409, "Conflict", f'{target.resource} "{target.name}": the object has been modified')
            allowed = {"status"} if target.subresource == "status" else set(body) - {"status"}
            new = _merged(old, {key: value for key, value in body.items() if key in allowed})
            if new == old:
                return old
            if new.get("spec") != old.get("spec"):
                generation = int(old["metadata"].get("generation") or 0) + 1
                new["metadata"] = new["metadata"] | {"generation": generation}
            if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
                return (
                    self._removed(target, new) if target.resource != "pods" else self._stored("MODIFIED", target, new)
                )
            return self._stored("MODIFIED", target, new)

    def delete(self, target: Target, options: Object) -> Object:
        """Delete, or begin to: a pod on a node ends in its own time, and an owner goes after what it owns."""
        with self._changed:
            one = self._found(target)
            grace_s = options.get("gracePeriodSeconds")
            on_node = target.resource == "pods" and one["spec"].get("nodeName") and grace_s != 0
            foreground = options.get("propagationPolicy") == "Foreground" and target.resource in {"deployments", "jobs"}
            kept = bool(one["metadata"].get("finalizers"))
            if not on_node and not foreground and not kept:
                return self._removed(target, one)
            if "deletionTimestamp" in one["metadata"]:
                return one
            metadata = one["metadata"] | {"deletionTimestamp": _now()}
            if foreground:
                metadata["finalizers"] = [*metadata.get("finalizers", []), FOREGROUND]
            return self._stored("MODIFIED", target, one | {"metadata": metadata})

    def watch(self, target: Target, query: Mapping[str, str]) -> Iterator[Object | None]:
        """Events from a version on; None where nothing happened for a moment. Raises Refusal when it is forgotten."""
        seen = int(query.get("resourceVersion") or 0)
        deadline_s = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        if seen < self.forgotten:
            yield {"type": "ERROR", "object": Refusal(410, "Expired", f"too old resource version: {seen}").status()}
            return
        yield None
        while not self._closed and time.monotonic() < deadline_s:
            with self._changed:
                if self._version <= seen:
                    self._changed.wait(min(SLICE_S, max(deadline_s - time.monotonic(), 0.0)))
                events = self._events[seen:]  # the first is of version 1
                seen = self._version
            found = [event for event in events if _within(target, event.key) and selected(event.one, query)]
            for event in found:
                yield {"type": event.kind, "object": event.one}
            yield None

    def _found(self, target: Target) -> Object:
        key = (target.resource, target.namespace, target.name)
        if key not in self._objects:
            raise Refusal(404, "NotFound", f'{target.resource} "{target.name}" not found')
        return self._objects[key]

    def _made(self, target: Target, body: Object) -> Object:
        one = copy.deepcopy(body)
        one.pop("status", None)
        one.setdefault("kind", KINDS.get(target.resource, target.resource))
        one.setdefault("apiVersion", _api_version(target))
        metadata = one.setdefault("metadata", {})
        metadata |= {"name": target.name, "uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now()}
        if target.namespace:
            metadata["namespace"] = target.namespace
        return self._stored("ADDED", target, one)

    def _removed(self, target: Target, one: Object) -> Object:
        self._objects.pop((target.resource, target.namespace, target.name))
        return self._told("DELETED", target, one)

    def _stored(self, kind: str, target: Target, one: Object) -> Object:
        _write_quantities(one)
        self._objects[target.resource, target.namespace, target.name] = told = self._told(kind, target, one)
        return told

    def _told(self, kind: str, target: Target, one: Object) -> Object:
        self._version += 1
        told = one | {"metadata": one["metadata"] | {"resourceVersion": str(self._version)}}
        self._events.append(_Event(kind, (target.resource, target.namespace, target.name), told))
        self._changed.notify_all()
        return told


def selected(one: Object, query: Mapping[str, str]) -> bool:
    """Whether an object matches the selectors of a list or a watch."""
    labels = one["metadata"].get("labels") or {}
    wanted = [term.split("=", 1) for term in (query.get("labelSelector") or "").split(",") if term]
    fields = [term.split("=", 1) for term in (query.get("fieldSelector") or "").split(",") if term]
    return all(labels.get(name) == value for name, value in wanted) and all(
        str(_field(one, path)) == value for path, value in fields
    )


def _field(one: Object, path: str) -> Any:
    value: Any = one
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _within(target: Target, key: tuple[str, str, str]) -> bool:
    return key[0] == target.resource and target.namespace in {"", key[1]}


def _merged(old: Any, new: Any) -> Any:
    """RFC 7386."""
    if not isinstance(new, dict):
        return new
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _write_quantities(value: Any) -> None:
    """Requests and limits are kept as text, whatever they were given as."""
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _write_quantities(child)
    for amounts in (value[name] for name in ("limits", "requests") if isinstance(value, dict) and name in value):
        if isinstance(amounts, dict):  # a claim's requests are a list
            amounts.update({name: str(amount) for name, amount in amounts.items()})


def _api_version(target: Target) -> str:
    return target.group.removeprefix("apis/").removeprefix("api/")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
