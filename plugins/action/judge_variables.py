# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Judges every variable of the roles on the machine that runs Ansible, before a playbook changes anything.

What each may be stands behind its value, in defaults/main.yml of its role or in inventory/group_vars/all; the kinds of text that are named there, and
what several have to be together, in roles/preflight/vars/kinds.yml. A wrong one is refused with its name, what it is and what it may be.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import ipaddress
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version

OLDEST_ANSIBLE = (2, 19)
ROLES = Path(__file__).parents[2] / "roles"
DEFAULTS = [*sorted(ROLES.glob("*/defaults/main.yml")), *sorted(ROLES.glob("*/defaults/main/*.yml"))]
# A name with its value, and behind that what it may be.
DESCRIBED = re.compile(r"([a-z0-9_]+):(?: .*)?  # (.+)")
# They are one role.
ADDONS = (
    *("runtime_class", "storage", "metrics_server", "node_exporter"),
    *("dcgm_exporter", "kube_state_metrics", "kepler"),
)
BYTES = {
    "": 1,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
SECONDS = {"h": 3600, "m": 60, "s": 1}
# Kubernetes knows no seventh day of the week.
CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
# Words that other roles' variables begin with as well: there, only a name close to one of ours is a misspelt one.
COMMON = ("grafana", "kernel", "kepler", "prometheus", "storage", "swap", "worker")
CLOSE = 0.75
# Its sums are nobody's guess: who adds the row takes them from the files.
CALICO_OF_137 = (
    " 1.37 needs Calico 3.33 as well, a row of versions_calico: the files of https://raw.githubusercontent.com/projectcalico/calico/v3.33.0/manifests"
    " (operator-crds.yaml, tigera-operator.yaml), each with its sha256sum, and quay.io/tigera/operator:v1.44.0."
)
RENAMED = {
    "crio_logins": "mirror_logins",
    "crio_mirror": "mirror_images",
    "crio_mirror_insecure": "mirror_images_insecure",
    "dcgm_exporter_runtime_class": "runtime_class_name",
    "nvidia_toolkit_gpu": "node_gpu",
    **{f"kubernetes_packages_drain_{name}": f"upgrade_drain_{name}" for name in ("timeout_s", "emptydir", "bare_pods")},
    **{
        f"{role}_upgrade": "upgrade_packages"
        for role in ("crio", "kubernetes_packages", "nvidia_driver", "nvidia_toolkit")
    },
    **{
        f"{role}_apt_lock_timeout_s": "apt_lock_timeout_s"
        for role in ("crio", "kubernetes_packages", "nvidia_driver", "nvidia_toolkit", "workload_image")
    },
    **{f"{addon}_timeout_s": "addons_timeout_s" for addon in ADDONS if addon != "runtime_class"},
}
SHOWN_CHARS = 80
READ_CHARS = 1000
# user:password@ of an address, whatever is wrong with it; a digest (image@sha256:...) is none.
CREDENTIALS = re.compile(r"(?<=//).*@|[^\s\"/@]+:[^\s\"@]+@(?!sha256:)")


def amount(text: str) -> float:
    """Bytes or CPUs of a quantity such as 512Mi, 2 or 500m."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return float(number) / 1000 if unit == "m" else float(number) * BYTES[unit]


def seconds(text: str) -> int:
    """Seconds of a duration such as 1h30m."""
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"([0-9]+)([hms])", text))


def network(text: str) -> ipaddress.IPv4Network:
    """An IPv4 network; ValueError for anything else."""
    if not re.fullmatch(r"[0-9.]{7,15}/[0-9]{1,2}", text):
        raise ValueError(text)
    return ipaddress.IPv4Network(text)


def whole_network(text: str) -> bool:
    """Whether a network is none of those that mean something else: this host, itself, the link, several hosts."""
    special = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")
    return not any(network(text).overlaps(ipaddress.IPv4Network(each)) for each in special)


def port_fits(text: str) -> bool:
    """Whether the port of an address, with or without a protocol and a path, can be one; none is right too."""
    authority = text.partition("//")[2] if "//" in text else text
    found = re.search(r":([0-9]+)$", authority.split("/")[0].rpartition("@")[2])
    return found is None or 1 <= int(found[1]) <= 65535


def address(text: str) -> ipaddress.IPv4Address:
    """The address of a machine; ValueError for anything else."""
    found = ipaddress.IPv4Address(text)
    if found.is_loopback or found.is_multicast or found.is_reserved or found.is_unspecified:
        raise ValueError(text)
    return found


def dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Kernel parameters by their names with dots; as for the kernel, the last of two that mean the same counts."""
    return {name.replace("/", "."): value for name, value in values.items()}


def driver(text: str) -> list[int]:
    """A driver's version as numbers."""
    return [int(part) for part in text.split(".")]


def endpoint(text: str) -> bool:
    """Whether a text is a name or an address, with or without a port."""
    host = text.partition(":")[0]
    return port_fits(text) and (bool(address(host)) if host.rpartition(".")[2].isdigit() else host != "localhost")


def certificate(text: str) -> bool:
    """Whether a path leads to a certificate; OSError where it leads to nothing."""
    # Another path is looked for where Ansible looks for files.
    path = Path(text).expanduser()
    return not path.is_absolute() or "-----BEGIN CERTIFICATE-----" in path.read_text(encoding="utf-8")


def cron(text: str) -> bool:
    """Whether a text is when a CronJob runs."""
    fields = text.split(" ")
    return len(fields) == len(CRON) and all(
        _cron_field(field, *bounds) for field, bounds in zip(fields, CRON, strict=True)
    )


def _cron_field(field: str, least: int, most: int) -> bool:
    for part in field.split(","):
        found = re.fullmatch(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([1-9][0-9]?))?", part)
        if not found:
            return False
        first, last = found.group(1), found.group(2)
        if first and not least <= int(first) <= int(last or first) <= most:
            return False
    return True


# What the expressions of kinds.yml may call.
RULES = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined)  # noqa: S701 - makes no page
RULES.globals["date"] = dt.date.fromisoformat
for rule in (address, amount, certificate, cron, dotted, driver, endpoint, network, port_fits, seconds, whole_network):
    RULES.globals[rule.__name__] = rule
compiled = functools.cache(RULES.compile_expression)


def fits(kind: Mapping[str, Any], text: str) -> bool:
    """Whether a text is of a kind."""
    if text == "" and kind.get("empty"):
        return True
    if not re.fullmatch(kind.get("pattern", "[ -~]*"), text) or text in kind.get("but", ()):
        return False
    try:
        return "rule" not in kind or bool(compiled(kind["rule"])(text=text))
    except (OSError, RuntimeError, ValueError):  # a RuntimeError: the home of a user who does not exist
        return False


class WrongValueError(ValueError):
    """A value that its variable cannot have; says what it may be."""


def described(text: str) -> dict[str, tuple[str, str]]:
    """Of each variable of a file of defaults that says what it may be: the prose above it, and what stands behind its value."""
    words: list[str] = []
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            words.append(line.lstrip("# "))
            continue
        if variable := DESCRIBED.fullmatch(line):
            found[variable[1]] = (" ".join(words), variable[2])
        words = []
    return found


def option(said: str) -> dict[str, Any]:
    """What a variable may be, as it stands behind its value.

    bool; 1 to 5 or 9; one of a, b; list of KIND; dict of KIND: KIND; else the KIND of a text. A KIND in a list or a dict is a name of
    kinds.yml, a dictionary of them, or [KIND] for a list.
    """
    if said == "bool":
        return {"type": "bool"}
    if said.startswith("one of "):
        return {"type": "str", "choices": said.removeprefix("one of ").split(", ")}
    if said[0].isdigit():
        bounds = [part.split(" to ") for part in said.split(" or ")]
        return {"type": "int", "ranges": [(int(pair[0]), int(pair[-1])) for pair in bounds]}
    collection, of, kinds = said.partition(" of ")
    inner = yaml.safe_load(kinds)
    if collection == "list" and of:
        return {"type": "list", "of": inner, "elements": "dict" if isinstance(inner, dict) else "str"}
    if collection == "dict" and of:
        ((key, value),) = inner.items()
        return {"type": "dict", "key": key, "of": value}
    return {"type": "str", "of": said}


class Table:
    """What every variable may be: the kinds of text; by variable, what it may be; and by variable, its role, where it is a role's."""

    def __init__(
        self,
        kinds: Mapping[str, Any],
        values: Mapping[str, Any],
        roles: Mapping[str, str],
        rules: Iterable[Mapping[str, str]],
    ) -> None:
        self.kinds, self.values = kinds, {name: option(said) for name, said in values.items()}
        self.rules = [
            (list(dict.fromkeys(word for word in re.findall(r"\w+", rule["that"]) if word in self.values)), rule)
            for rule in rules
        ]
        self.roles = {
            name: next((addon for addon in ADDONS if name.startswith(f"{addon}_")), role)
            for name, role in roles.items()
        }

    def unknown(self, names: Iterator[str] | list[str]) -> Iterator[str]:
        """Names with the prefix of a role that no role knows: each as a sentence."""
        prefixes = {role: f"{role}_" for role in self.roles.values()}
        for name in sorted(set(names) - set(self.values)):
            if name in RENAMED:
                yield f"{name} is called {RENAMED[name]} now."
                continue
            role = next((role for role, prefix in prefixes.items() if name.startswith(prefix)), None)
            if role is None:
                continue
            known = [one for one in self.roles if self.roles[one] == role]
            rest = {one.removeprefix(f"{role}_"): one for one in known}
            close = difflib.get_close_matches(name.removeprefix(f"{role}_"), rest, n=1, cutoff=CLOSE)
            if close:
                yield f"{name} is not a supported variable. Did you mean {rest[close[0]]}?"
            elif role not in COMMON:
                yield f"{name} is not a variable of the role {role}, which has {', '.join(known)}."

    def wrong(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Every reason against the values: first each by itself, then those that do not fit together."""
        good: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self.values:
                continue
            try:
                good[name] = self.read(name, value)
            except WrongValueError as reason:
                yield f"{name} is {self.shown(name, value)}; it has to be {reason}."
        for names, rule in self.rules:
            known = {name: good[name] for name in names if name in good}
            if len(known) == len(names) and not compiled(rule["that"])(**known):
                yield f"{' and '.join(f'{name} ({value})' for name, value in known.items())}: {rule['say']}."

    def shown(self, name: str, value: Any) -> str:
        """A value as a message shows it: short, on one line, and no secret."""
        inner = self.values[name].get("of")
        if isinstance(inner, str) and self.kinds[inner].get("hidden"):
            return "not shown"
        text = CREDENTIALS.sub("...@", json.dumps(value, default=str)[:READ_CHARS])
        return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."

    def read(self, name: str, value: Any) -> Any:
        """The value as the variable has it; WrongValueError with what it may be."""
        may = self.values[name]
        if may["type"] == "bool":
            return self.boolean(value)
        if may["type"] == "int":
            return self.number(may["ranges"], value)
        if may["type"] == "list":
            return self.sequence(may["of"], value)
        if may["type"] == "dict":
            return self.mapping(may["key"], may["of"], value)
        if "choices" not in may:
            return self.text(may["of"], value)
        if not isinstance(value, str) or value not in may["choices"]:
            raise WrongValueError(f"one of {', '.join(may['choices'])}")
        return value

    @staticmethod
    def boolean(value: Any) -> bool:
        """A truth value, also as -e name=true gives it."""
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise WrongValueError("true or false")

    @staticmethod
    def number(ranges: list[tuple[int, int]], value: Any) -> int:
        """A whole number in one of the ranges, also as -e name=5 gives it."""
        plain = isinstance(value, int) and not isinstance(value, bool)
        text = isinstance(value, str) and re.fullmatch("-?[0-9]{1,18}", value, re.ASCII)
        if (plain or text) and any(least <= int(value) <= most for least, most in ranges):
            return int(value)
        said = " or ".join(str(least) if least == most else f"from {least} to {most}" for least, most in ranges)
        raise WrongValueError(f"a whole number: {said}")

    def text(self, name: str, value: Any) -> str:
        """Text of a kind; a number only where it stays what it is when it is written down."""
        kind = self.kinds[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        text = str(value) if isinstance(value, str) or (number and kind.get("number")) else None
        if text is None or not fits(kind, text):
            raise WrongValueError(kind["is"])
        return text

    def field(self, kind: Any, value: Any) -> Any:
        """One element or value of a collection."""
        if isinstance(kind, list):
            return self.sequence(kind[0], value)
        if not isinstance(kind, Mapping):
            return self.text(kind, value)
        if not isinstance(value, Mapping) or set(value) != set(kind):
            raise WrongValueError(f"a dictionary with {', '.join(kind)}")
        return {name: self.text(one, value[name]) for name, one in kind.items()}

    def sequence(self, kind: Any, value: Any) -> list[Any]:
        """A list whose elements are all of one kind."""
        if not isinstance(value, list | tuple):
            raise WrongValueError('a list, such as -e \'{"name": ["one", "other"]}\' or one element a line in a file')
        try:
            found = [self.field(kind, one) for one in value]
        except WrongValueError as reason:
            raise WrongValueError(f"a list, of which every element is {reason}") from None
        repeated = isinstance(kind, str) and self.kinds[kind].get("repeated")
        if not repeated and any(one in found[:place] for place, one in enumerate(found)):
            raise WrongValueError("a list without duplicates")
        return found

    def mapping(self, key: str, kind: Any, value: Any) -> dict[str, Any]:
        """A dictionary whose keys are all of one kind, and its values too."""
        if not isinstance(value, Mapping):
            raise WrongValueError("a dictionary")
        try:
            keys = [self.text(key, one) for one in value]
        except WrongValueError as reason:
            raise WrongValueError(f"a dictionary, of which every key is {reason}") from None
        try:
            return dict(zip(keys, (self.field(kind, one) for one in value.values()), strict=True))
        except WrongValueError as reason:
            raise WrongValueError(f"a dictionary, of which every value is {reason}") from None


def one_control_plane(task_vars: Mapping[str, Any]) -> Iterator[str]:
    """The reason against an inventory with several control planes."""
    group = list(task_vars.get("groups", {}).get("control_plane", ()))
    if len(group) > 1:
        yield (
            f"The group control_plane has {len(group)} hosts ({', '.join(group)}), each of which would become a cluster of its"
            " own. Leave one of them there and put the others into workers."
        )


def misplaced(task_vars: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """The reasons against a host that would be two machines, another one's, or have another's name."""
    host, groups, hosts = task_vars["inventory_hostname"], task_vars.get("groups", {}), task_vars.get("hostvars", {})
    plane, workers = groups.get("control_plane", ()), groups.get("workers", ())
    if host in workers and host in plane:
        yield f"{host} is in control_plane and in workers. Leave it in one of them: a control plane runs pods, too."
    others = [one for one in dict.fromkeys([*plane, *workers]) if one != host and one in hosts]
    twins = [one for one in others if machine_of(one, hosts[one]) == machine_of(host, task_vars)]
    if twins:
        yield f"{host} is the same machine as {', '.join(twins)}, by how they are reached. Name each machine once."
    name = given.get("worker_node_name" if host in workers else "control_plane_node_name")
    taken = [one for one in others if name_of(one, hosts[one], given, workers) == name]
    key = "control_plane_node_name"
    if host in workers and name and name in [hosts.get(one, {}).get(key, given.get(key)) for one in plane]:
        yield f"worker_node_name is {name}, which is the control plane's (control_plane_node_name). Each node needs a name of its own."
    elif host in workers and taken:
        yield f"worker_node_name is {name}, which {', '.join(taken)} has, too. Each node needs a name of its own."
    yield from shared_wrong(name, given, [name_of(one, hosts[one], given, workers) for one in others])


def machine_of(host: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a host is reached by."""
    kind = str(values.get("ansible_connection", "ssh"))
    if kind == "local":
        return (kind,)
    ways = ("ansible_port", "ansible_ssh_common_args", "ansible_ssh_extra_args")
    return (kind, values.get("ansible_host", host), *(str(values.get(way, "")) for way in ways))


def name_of(host: str, values: Mapping[str, Any], given: Mapping[str, Any], workers: Collection[str]) -> Any:
    """The name of another host's node."""
    if host in workers:
        return values.get("worker_node_name", host)
    return values.get("control_plane_node_name", given.get("control_plane_node_name"))


def shared_wrong(name: Any, given: Mapping[str, Any], others: list[Any]) -> Iterator[str]:
    """The reasons against ways of sharing that are named by their nodes."""
    ways = given.get("device_plugin_sharing_of", {})
    strange = sorted(set(ways) - {name, *others}) if others or name else []
    if strange:
        yield f"device_plugin_sharing_of names {', '.join(strange)}; the nodes are {', '.join(sorted(map(str, {name, *others})))}."
    if str(ways.get(name, "")).startswith("mps") and given.get("device_plugin_mig_strategy", "none") != "none":
        yield f"device_plugin_sharing_of has {name} share by MPS, which is not supported on MIG instances (device_plugin_mig_strategy)."


def in_no_group(task_vars: Mapping[str, Any]) -> list[str] | None:
    """Of a host that no playbook here works on: the reason where there is no other, none where it is a guest; None for ours."""
    groups = task_vars.get("groups", {})
    if groups.get("control_plane"):
        ours = [*groups["control_plane"], *groups.get("workers", ())]
        return None if task_vars["inventory_hostname"] in ours else []
    others = ", ".join(sorted(set(groups) - {"all", "ungrouped"})) or "none"
    return [
        (
            f"The inventory has no host in the group control_plane, where the playbooks look for the machine (its groups: {others}). Put one there,"
            " and machines that join it into workers."
        )
    ]


def bridged_alone(task_vars: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """The reason against a bridge that would have to reach another machine."""
    workers = list(task_vars.get("groups", {}).get("workers", ()))
    if given.get("calico_network") == "bridge" and workers:
        yield (
            f"calico_network is bridge, and the group workers has {', '.join(workers)}: a bridge ends at its machine."
            " Choose calico, or none with a network of your own."
        )


def ended(given: Mapping[str, Any], today: dt.date) -> list[str]:
    """The warning of a minor that upstream mends no longer; a new node on one is refused by preflight."""
    last = given.get("preflight_end_of_life")
    if last is None or today <= dt.date.fromisoformat(last):
        return []
    return [
        (
            f"Kubernetes {given['kubernetes_minor']} has ended on {last}, and upstream no longer maintains it. Set"
            " kubernetes_minor to the next one and run playbooks/upgrade.yml."
        )
    ]


def too_old(version: str) -> Iterator[str]:
    """The reason against an Ansible that lacks what the roles use; looked at first, for the rest of the judge would fail on it."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST_ANSIBLE:
        yield (
            f"This is ansible-core {version}, and these playbooks need 2.19 or newer (2.19 runs on Python 3.11, later ones need 3.12)."
            " Get it beside this one, with nothing else: python3 -m venv ~/ansible && ~/ansible/bin/pip install 'ansible-core>=2.19';"
            " then run ~/ansible/bin/ansible-playbook."
        )


def knows_sudo_rs() -> bool:
    """Whether this Ansible recognises how sudo-rs asks for a password, which puts words of its own around those that are wanted."""
    from ansible.plugins.loader import become_loader, shell_loader

    sudo = become_loader.get("sudo")
    sudo.set_options(direct={"become_pass": "-"})
    (prompt,) = re.findall(r'-p "([^"]*)"', sudo.build_become_command("true", shell_loader.get("sh")))
    return bool(sudo.check_password_prompt(f"[sudo: {prompt}] Password: ".encode()))


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """Judges the variables of the host it runs for; talks to the machine only where its sudo wants a password."""

    _requires_connection = False

    def load(self, path: Path) -> Any:
        """A file of the roles, its templates trusted; not copied, which takes as long as reading, for nobody changes it."""
        return self._loader.load_from_file(str(path), trusted_as_template=True, unsafe=True) or {}

    def table(self) -> Table:
        """What every variable may be."""
        kinds = self.load(ROLES / "preflight/vars/kinds.yml")
        values: dict[str, str] = dict(kinds["__preflight_without_default"])
        roles: dict[str, str] = {}
        for path in DEFAULTS:
            found = described(path.read_text(encoding="utf-8"))
            values |= {name: said for name, (_, said) in found.items()}
            # The table of versions is no role's alone.
            roles |= {name: path.parts[-3] for name in found if path.name == "main.yml"}
        return Table(kinds["__preflight_kinds"], values, roles, kinds["__preflight_rules"])

    def misunderstood(self, task_vars: Mapping[str, Any]) -> Iterator[str]:
        """The reason against a sudo whose question for a password this Ansible would wait for in vain."""
        passwords = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
        given = self._play_context.become_pass or any(task_vars.get(name) for name in passwords)
        if not given or task_vars.get("ansible_become_method", "sudo") != "sudo" or knows_sudo_rs():
            return
        sudo = task_vars.get("ansible_become_exe", "sudo")
        said = self._low_level_execute_command(f"id -u; {sudo} --version", sudoable=False)["stdout"].split()
        if said[:1] != ["0"] and "sudo-rs" in said:
            yield (
                f"sudo there is sudo-rs, and ansible-core {ansible_version} does not recognise how it asks for a password. Set ansible_become_exe"
                " to sudo.ws where that is there (Ubuntu keeps the other sudo under this name), let the user become root without a"
                " password (NOPASSWD in /etc/sudoers.d), or use an ansible-core that supports sudo-rs."
            )

    def reasons(self, task_vars: Mapping[str, Any], given: dict[str, Any]) -> Iterator[str]:
        """Every reason not to go on; puts the value of every variable into given."""
        table, defaults = self.table(), self.defaults()
        yield from table.unknown(list(task_vars))
        known = {**defaults, **task_vars}
        minor, minors = known["kubernetes_minor"], list(known["versions_by_minor"])
        if minor not in minors:
            written = ". Put it in quotes" if isinstance(minor, float) else ""
            yield (
                f"kubernetes_minor is {minor}; the table of versions has {', '.join(minors)}{written}. Choose one of these,"
                f" or add a row to inventory/group_vars/all/versions.yml.{CALICO_OF_137 if str(minor) == '1.37' else ''}"
            )
            return
        yield from one_control_plane(task_vars)
        yield from self.resolve(table, task_vars, defaults, given)
        yield from table.wrong(given)
        yield from bridged_alone(task_vars, given)
        yield from misplaced(task_vars, given)

    def defaults(self) -> dict[str, Any]:
        """The defaults of every role, that of the versions too: an inventory of its own need not have our group variables."""
        found: dict[str, Any] = {}
        for path in DEFAULTS:
            found |= self.load(path)
        return found

    def resolve(
        self, table: Table, task_vars: Mapping[str, Any], defaults: Mapping[str, Any], given: dict[str, Any]
    ) -> Iterator[str]:
        """Puts the value of every variable into given; a reason for each that cannot be resolved."""
        host = task_vars["inventory_hostname"]
        joins = host in task_vars.get("groups", {}).get("workers", ())
        templar = self._templar.copy_with_new_env(available_variables={**defaults, **task_vars})
        for name in table.values:
            # A machine that joins nothing has no name as a worker.
            if name not in task_vars and (name not in defaults or (table.roles.get(name) == "worker" and not joins)):
                continue
            try:
                given[name] = templar.template(task_vars[name] if name in task_vars else defaults[name])
            except AnsibleError as error:
                yield f"{name} cannot be resolved: {' '.join(str(error).split())}."

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result: failed with every reason, or ok and unchanged."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        given: dict[str, Any] = {}
        reasons = list(too_old(ansible_version)) or in_no_group(variables)
        if reasons is None:
            reasons = [*self.misunderstood(variables), *self.reasons(variables, given)]
        if not reasons:
            today = dt.datetime.now(dt.UTC).date()
            return {"changed": False, "warnings": ended(given, today)}
        host = variables.get("inventory_hostname", "the machine")
        listed = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
        return {"failed": True, "msg": f"Nothing was changed. {host} cannot be set up with these variables:\n{listed}"}
