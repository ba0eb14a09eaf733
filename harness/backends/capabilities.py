"""What each backend can do for a campaign; what it cannot is refused when the campaign file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from harness.errors import CampaignFileError
from harness.sharing.modes import FOUND, mode_of
from harness.spec import CampaignSpec, ScenarioKind, ServerSpec, Timing

LOCAL, KUBERNETES = BACKENDS = ("local", "kubernetes")


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a campaign file can ask for.

    Attributes:
        name: in the table.
        asked: what of a campaign asks for it, in words; nothing: it does not.
        lacking: why a backend cannot do it, by backend, and what to do instead; a backend that is not named can.
        unless: the setting with which a backend that lacks it can do it, by backend.
    """

    name: str
    asked: Callable[[CampaignSpec], Iterator[str]]
    lacking: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)

    def cell(self, backend: str) -> str:
        """What the table says of a backend."""
        if backend not in self.lacking:
            return "yes"
        return f"{f'with {self.unless[backend]}' if backend in self.unless else 'no'}: {self.lacking[backend][0]}"


def _modes(spec: CampaignSpec) -> Iterator[str]:
    if len(spec.sharing) > 1 and not spec.switches_sharing and not spec.by_claims:
        yield f"sharing {' and '.join(mode.value for mode in spec.sharing)} in one campaign"


def _time_slices(spec: CampaignSpec) -> Iterator[str]:
    if spec.time_slice and not spec.by_claims:
        yield "`time_slice`"


def _shared_gpus(spec: CampaignSpec) -> Iterator[str]:
    shared = [mode for mode in spec.sharing if not mode_of(mode).each_its_own]
    if spec.gpus > 1:
        yield from (f"sharing {mode.value} of `gpus: {spec.gpus}`" for mode in shared)


def _several_shared(spec: CampaignSpec) -> Iterator[str]:
    each = spec.kubernetes.gpus_per_replica if spec.kubernetes else 0
    if each > 1:
        shared = [mode for mode in spec.sharing if mode_of(mode).shares_gpu]
        yield from (f"`gpus_per_replica: {each}` under sharing {mode.value}" for mode in shared)


def _mps(spec: CampaignSpec) -> Iterator[str]:
    if spec.mps is not None:
        yield "`mps`"


def _neighbours(spec: CampaignSpec) -> Iterator[str]:
    yield from (f"neighbours in condition {each.name}" for each in spec.conditions if each.neighbours)


def _own_cpus(spec: CampaignSpec) -> Iterator[str]:
    beside = [each.workload for condition in spec.conditions for each in condition.neighbours]
    yield from (
        f"`cpus_per_replica` of workload {each.name}" for each in [*spec.workloads, *beside] if each.cpus_per_replica
    )


def _layers(spec: CampaignSpec) -> Iterator[str]:
    yield from (f"a layer in condition {each.name}" for each in spec.conditions if each.layer)


def _libraries_of_images(spec: CampaignSpec) -> Iterator[str]:
    for each in spec.conditions:
        if each.layer is not None and each.layer.preload_image:
            yield f"`preload_image` in condition {each.name}"


def _layers_of_servers(spec: CampaignSpec) -> Iterator[str]:
    for what in _layers(spec):
        yield from (f"{what}, around the server of workload {each.name}" for each in spec.workloads if each.server)


def _stress(spec: CampaignSpec) -> Iterator[str]:
    if spec.stress is not None:
        yield "`stress`"


def _stop_when_known(spec: CampaignSpec) -> Iterator[str]:
    if spec.timing.stop_when_known is not None:
        yield "`timing.stop_when_known`"


def _cool(spec: CampaignSpec) -> Iterator[str]:
    if spec.timing.cooldown_gpu_celsius is not None:
        yield "`timing.cooldown_gpu_celsius`"


def _telemetry(spec: CampaignSpec) -> Iterator[str]:
    if spec.timing.telemetry_interval_s != Timing().telemetry_interval_s:
        yield "`timing.telemetry_interval_s`"


def _scenarios(spec: CampaignSpec, *, http: bool) -> Iterator[str]:
    for workload in spec.workloads:
        if workload.scenario is not None and (workload.scenario.kind is ScenarioKind.HTTP) is http:
            yield f"scenario {workload.scenario.kind.value} of workload {workload.name}"


def _servers(spec: CampaignSpec, asked: Callable[[ServerSpec], str]) -> Iterator[str]:
    """What servers of one's own ask for, by workload; an empty answer: nothing of it."""
    for each in spec.workloads:
        if each.server is not None and (what := asked(each.server)):
            yield f"{what} of workload {each.name}"


def _of_files(server: ServerSpec) -> str:
    asked = {
        "trace": server.trace,
        "requests.file": server.requests.file,
        "requests.tokenizer": server.requests.tokenizer,
    }
    return " and ".join(f"`server.{name}`" for name, given in asked.items() if given)


def _key_of_environment(server: ServerSpec) -> bool:
    return server.api_key_env is not None and server.api_key_env not in server.secret_env


def _modes_of_running(spec: CampaignSpec) -> Iterator[str]:
    asked = [mode.value for mode in spec.sharing if mode is not FOUND.sharing]
    yield from (f"sharing {' and '.join(asked)} of workload {name}" for name in _running(spec) if asked)


def _conditions_of_running(spec: CampaignSpec) -> Iterator[str]:
    yield from (f"`conditions` of workload {name}" for name in _running(spec) if spec.conditions)


def _running(spec: CampaignSpec) -> list[str]:
    """Workloads whose servers run already."""
    return [each.name for each in spec.workloads if each.server is not None and each.server.url]


def _factories(spec: CampaignSpec) -> Iterator[str]:
    yield from (f"`factory` of workload {each.name}" for each in spec.workloads if each.factory is not None)


def _pods(spec: CampaignSpec) -> Iterator[str]:
    if spec.kubernetes is not None:
        yield "`kubernetes`"


_PROCESSES = ("replicas are processes of this machine", "Say `backend: kubernetes`, or remove it.")
_BESIDE = "Use backend local."
_FOUND = (
    "the harness does not start it, and how it shares a GPU is as it was found",
    "Leave `sharing` out; other workloads go into a campaign of their own.",
)
_UNCHANGED = (
    "the harness does not start it, and can put nothing between it and the machine",
    "Run a campaign under each condition, and compare them: harness compare",
)
FEATURES = [
    Feature(
        "several sharing modes in one campaign",
        _modes,
        {
            KUBERNETES: (
                "a cluster's device plugin shares the GPUs, for all campaigns alike",
                "Name its configurations in `kubernetes.device_plugin_configs`, take claims (`kubernetes.sharing_by: dra`), or run a campaign for each mode.",
            )
        },
        unless={KUBERNETES: "`kubernetes.device_plugin_configs` or `kubernetes.sharing_by: dra`"},
    ),
    Feature(
        "how long turns under time-slicing are (`time_slice`)",
        _time_slices,
        {
            LOCAL: ("only an administrator may set it, for the whole GPU", "Leave it out."),
            KUBERNETES: (
                "the device plugin has no setting for it",
                "Take claims (`kubernetes.sharing_by: dra`), or leave it out.",
            ),
        },
        unless={KUBERNETES: "`kubernetes.sharing_by: dra`"},
    ),
    Feature(
        "several GPUs that replicas share (`gpus`)",
        _shared_gpus,
    ),
    Feature(
        "several shared GPUs for each replica (`kubernetes.gpus_per_replica` above 1)",
        _several_shared,
        {
            LOCAL: _PROCESSES,
            KUBERNETES: (
                "two slices may be of one GPU, and NVIDIA's device plugin refuses a pod more than one of a shared resource",
                "Take whole GPUs (`sharing: [exclusive]`), or leave `gpus_per_replica` at 1.",
            ),
        },
    ),
    Feature(
        "limits of each replica under MPS (`mps`; on a cluster within its slice's part of processors and memory)", _mps
    ),
    Feature("scenarios of LoadGen", lambda spec: _scenarios(spec, http=False)),
    Feature(
        "scenario `http` (on a cluster from pods of it, `kubernetes.load_generators`)",
        lambda spec: _scenarios(spec, http=True),
    ),
    Feature(
        "a server of your own as a command (`server.command`)",
        lambda spec: _servers(spec, lambda one: "`server.command`" * bool(one.command and not one.image)),
        {
            KUBERNETES: (
                "a pod runs an image",
                "Name the server's in `server.image`; `command` and `args` are then its container's.",
            )
        },
    ),
    Feature(
        "a server of your own as an image (`server.image`)",
        lambda spec: _servers(spec, lambda one: "`server.image`" * bool(one.image)),
        {LOCAL: ("the harness starts no container on this machine", "Give the server's `command` alone.")},
    ),
    Feature(
        "a server that runs already (`server.url`)",
        lambda spec: _servers(spec, lambda one: "`server.url`" * bool(one.url)),
    ),
    Feature(
        "one that runs on the asking machine itself (localhost in `server.url`)",
        lambda spec: _servers(spec, lambda one: "localhost in `server.url`" * one.here),
        {KUBERNETES: ("in a pod that address is the pod's own", "Give the address by which the cluster reaches it.")},
    ),
    Feature(
        "a key out of the environment (`server.api_key_env` alone)",
        lambda spec: _servers(spec, lambda one: "`server.api_key_env` alone" * _key_of_environment(one)),
        {KUBERNETES: ("no pod has this machine's variables", "Name the Secret that holds it in `server.secret_env`.")},
    ),
    Feature(
        "a key out of a Secret (`server.secret_env`)",
        lambda spec: _servers(spec, lambda one: "`server.secret_env`" * bool(one.secret_env)),
        {LOCAL: ("Secrets are a cluster's", "Export the variable that `server.api_key_env` names.")},
    ),
    Feature(
        "a line of the server's log that shows it is up (`server.ready.log`)",
        lambda spec: _servers(spec, lambda one: "`server.ready.log`" * bool(one.ready.log)),
        {
            KUBERNETES: (
                "a container sees the port of the one beside it, and not what it prints",
                "Use `path` or `tcp`.",
            )
        },
    ),
    Feature(
        "requests to a server out of files (`server.requests.file`, `server.requests.tokenizer`, `server.trace`; on a cluster up to 16 MB when compressed)",
        lambda spec: _servers(spec, _of_files),
    ),
    Feature(
        "what a server publishes of itself (`server.metrics`)",
        lambda spec: _servers(spec, lambda one: "`server.metrics`" * bool(one.metrics)),
    ),
    Feature(
        "a sharing mode for a server that runs already (`server.url`)",
        _modes_of_running,
        dict.fromkeys(BACKENDS, _FOUND),
    ),
    Feature("`conditions` of a server that runs already", _conditions_of_running, dict.fromkeys(BACKENDS, _UNCHANGED)),
    Feature("a workload of your own (`factory`; on a cluster its module is in the image)", _factories),
    Feature("neighbours", _neighbours),
    Feature(
        "CPUs of each replica's own (`cpus_per_replica`)",
        _own_cpus,
        {
            KUBERNETES: (
                "the kubelet pins pods, and only where its CPU manager's policy is static and whole CPUs are requested as limits",
                _BESIDE,
            )
        },
    ),
    Feature("layers (on a cluster `preload` is a library of the replicas' image, or of `preload_image`)", _layers),
    Feature(
        "a layer's library out of an image of its own (`preload_image`)",
        _libraries_of_images,
        {LOCAL: ("the harness starts no container on this machine", "Give the library's own path in `preload`.")},
    ),
    Feature(
        "a layer of a server of your own",
        _layers_of_servers,
        {KUBERNETES: ("the harness does not know the command of the server's image", "Put it into `server.command`.")},
    ),
    Feature("`stress`", _stress),
    Feature("`timing.stop_when_known`", _stop_when_known),
    Feature("cool-down until the GPUs are cool (`timing.cooldown_gpu_celsius`; on a cluster by their exporter)", _cool),
    Feature(
        "how often `telemetry.csv` has a row (`timing.telemetry_interval_s`)",
        _telemetry,
        {
            KUBERNETES: (
                "a cluster's GPUs are read by their exporter, as often as Prometheus scrapes it",
                "Remove it: `telemetry.csv` has a row for each scrape.",
            )
        },
    ),
    Feature(
        "pods, and settings of theirs (`kubernetes`)",
        _pods,
        {LOCAL: _PROCESSES},
    ),
]


def refusals(spec: CampaignSpec) -> Iterator[str]:
    """What the campaign asks for and its backend cannot do, a sentence or two each, with what to do."""
    for feature in FEATURES:
        why, instead = feature.lacking.get(spec.backend, ("", ""))
        yield from (f"{asked}: {why}. {instead}" for asked in feature.asked(spec) if why)


def require(spec: CampaignSpec, *, origin: str) -> None:
    """Raise CampaignFileError when the campaign asks for what its backend cannot do.

    Args:
        spec: the campaign.
        origin: names its file in the message.
    """
    found = list(refusals(spec))
    if found:
        lines = "\n".join(f"  {refusal}" for refusal in found)
        raise CampaignFileError(
            f"{origin} asks for what backend {spec.backend} cannot do:\n{lines}",
            advice="Mend the campaign file; nothing has been started.",
        )
