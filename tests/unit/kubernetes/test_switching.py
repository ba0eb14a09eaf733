"""The nodes are switched by a label, believed when they show the mode, and put back as they were found."""

import contextlib
import json
import threading
from types import SimpleNamespace

import pytest
import yaml

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.preflight import Preflight
from harness.errors import BackendError, ClusterError, IssueLevel
from harness.sharing import device_plugin
from harness.sharing.cluster import SWITCHED, SwitchedPlugin
from harness.sharing.switch import Switch
from harness.spec import ConditionSpec, KubernetesSpec, Sharing
from tests.support.device_plugin import CONFIGS, GPU, LABEL, NODES, PODS, DevicePlugin
from tests.support.experiments import experiment, neighbour
from tests.support.fake_cluster import Review
from tests.support.fake_cluster_store import Refusal, Target
from tests.support.simulated_clock import StillClock
from tests.unit.kubernetes.test_cluster_preflight import NoPrometheus

EXCLUSIVE, SLICED, MPS, MIG = Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS, Sharing.MIG
MAP = Target("api/v1", "gpu", "configmaps")


@pytest.fixture
def plugin(cluster):
    data = {name: yaml.safe_dump(config) for name, config in CONFIGS.items()} | {"README": "about: this"}
    cluster.store.create(MAP, {"metadata": {"name": "plugin"}, "data": data})
    cluster.before = DevicePlugin(cluster)
    return cluster.before


@pytest.fixture
def here(cluster, tmp_path):
    """The cluster as one campaign sees it."""
    kubeconfig = str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))
    spec = KubernetesSpec(kubeconfig=kubeconfig, device_plugin_configs="gpu/plugin", switch_timeout_s=10)
    return SimpleNamespace(spec=spec, api=KubernetesApi(spec), mode=SwitchedPlugin(spec, "mine", StillClock()))


def switch(here, sharing, replicas=2, *, by=None, abort=None):
    (by or here.mode).switch(here.api, experiment(sharing=sharing, replicas=replicas), abort or threading.Event())


def findings(here, *experiments):
    found = Preflight(here.api, here.spec, experiments, "mine").check(NoPrometheus)
    return {one.check: one for one in found if one.check in {"sharing", "gpus", "rights"}}


def hold(plugin, name="trainer"):
    plugin.pod(name, {"name": "main", "resources": {"limits": {GPU: "1"}}})


def test_each_mode_is_brought_about_and_what_was_found_is_put_back(here, plugin):
    found = dict(plugin.labels)
    switch(here, EXCLUSIVE, replicas=1)
    assert (plugin.applied[-1], plugin.labels["nvidia.com/mps.capable"]) == ("whole", "false")
    switch(here, MPS)
    assert (plugin.applied[-1], plugin.labels["nvidia.com/mps.capable"]) == ("mps-2", "true")
    switch(here, MPS, replicas=3)
    switch(here, SLICED)
    assert plugin.applied == ["sliced-4", "whole", "mps-2", "mps-8", "sliced-8"]

    assert here.mode.restore(here.api) == ["node n1 has the sharing mode again that was found."]
    assert here.mode.restore(here.api) == []
    plugin.looks = 1
    here.api.get("/api/v1/nodes/n1")
    assert plugin.labels == found
    assert plugin.applied[-1] == "sliced-4"


class Killed:
    """Lets one harness ask so often, and then do nothing any more, as after a SIGKILL; others ask on."""

    def __init__(self, plugin, requests):
        self.plugin, self.left = plugin, requests
        self.over, self.buried = threading.Event(), threading.Event()

    def __call__(self, verb, target):
        if not self.over.is_set():
            self.left -= 1
            if self.left < 0:
                self.over.set()
                self.buried.wait()
                raise ConnectionError
        self.plugin(verb, target)

    def switch(self, here):
        with contextlib.suppress(BackendError):
            switch(here, MPS, by=SwitchedPlugin(here.spec, "mine", StillClock()), abort=self.buried)
        self.over.set()


def test_a_harness_killed_at_any_request_of_a_switch_is_followed_by_one_that_restores(here, plugin, cluster):
    found, requests = dict(plugin.labels), 0
    while True:
        requests += 1
        cluster.before = killed = Killed(plugin, requests)
        dying = threading.Thread(target=killed.switch, args=(here,), daemon=True)
        dying.start()
        assert killed.over.wait(120)

        if requests % 2:  # what is left to do needs a mode, or nothing
            switch(here, SLICED, by=SwitchedPlugin(here.spec, "mine", StillClock()))
        here.mode.restore(here.api)
        for _ in range(plugin.looks + 1):
            here.api.get("/api/v1/nodes/n1")
        node = cluster.store.get(plugin.at)["metadata"]
        assert node["labels"] == found, f"killed at request {requests}"
        assert SWITCHED not in (node.get("annotations") or {})
        assert plugin.applied[-1] == "sliced-4"
        killed.buried.set()
        dying.join(120)
        if killed.left >= 0:  # it was not killed any more
            break
    assert "mps-2" in plugin.applied
    assert requests > 5


def test_a_mode_that_is_there_is_left_alone(here, plugin):
    plugin.cluster.store.merge(
        plugin.at, {"metadata": {"labels": {LABEL: "sliced-8", "nvidia.com/mps.capable": "false"}}}
    )
    switch(here, SLICED)
    hold(plugin)
    switch(here, SLICED)

    told = findings(here, experiment(sharing=SLICED))
    assert {check: one.severity for check, one in told.items()} == {"gpus": IssueLevel.WARNING}
    assert "hold GPUs of node n1: gpu/trainer" in told["gpus"].message
    assert "annotations" not in plugin.cluster.store.get(plugin.at)["metadata"]
    assert here.mode.restore(here.api) == []


def test_somebody_elses_pod_keeps_its_gpu(here, plugin):
    hold(plugin)

    with pytest.raises(BackendError, match="node n1 cannot be switched: gpu/trainer would lose the GPU"):
        switch(here, MPS)

    assert LABEL not in plugin.labels
    assert "gpu/trainer" in findings(here, experiment(sharing=MPS))["sharing"].message


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        ({"deaf": frozenset({"mps-2"})}, "node n1 advertises 4 nvidia.com/gpu and not 2"),
        ({"daemon": False}, "no MPS control daemon is ready on node n1"),
        ({"discovery": False}, ""),
    ],
)
def test_a_node_that_does_not_get_there_is_said_with_what_it_shows(here, plugin, lack, said):
    for name, value in lack.items():
        setattr(plugin, name, value)
    plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {"nvidia.com/gpu.sharing-strategy": None}}})

    if not said:
        switch(here, MPS)
        return
    with pytest.raises(BackendError, match=f"set to mps-2 and are not there after 10 s: {said}"):
        switch(here, MPS)
    with pytest.raises(BackendError, match="not there after 0 s"):  # it is not waited for again
        switch(here, MPS)
    switch(here, SLICED)


def test_a_gpu_that_needs_a_reset_is_why_a_node_does_not_get_there(here, plugin):
    status = {"capacity": {GPU: "4"}, "allocatable": {GPU: "0"}}
    plugin.deaf = frozenset(CONFIGS)
    plugin.cluster.store.merge(Target("api/v1", "", "nodes", plugin.node, "status"), {"status": status})
    with pytest.raises(
        BackendError, match=r"node n1 advertises 0 of its 4 nvidia\.com/gpu: the device plugin calls the others"
    ):
        switch(here, SLICED)


def test_who_else_lends_a_nodes_gpus_is_named_where_they_do_not_come_to_the_mode(here, plugin):
    plugin.deaf = frozenset({"mps-2"})
    annotations = {"hami.io/node-nvidia-register": "[]"}
    plugin.cluster.store.merge(plugin.at, {"metadata": {"annotations": annotations}})
    with pytest.raises(
        BackendError, match=r"and not 2 \(HAMi \(annotation hami\.io/node-nvidia-register\) manages them\)"
    ):
        switch(here, MPS)


def test_what_a_node_lacks_for_long_is_told_once_while_it_is_waited_for(here, plugin):
    plugin.daemon = False
    patient = SwitchedPlugin(here.spec.model_copy(update={"switch_timeout_s": 60.0}), "mine", StillClock())
    told = []

    def hear(sentence):
        told.append((patient.clock.now_s(), sentence))

    with pytest.raises(BackendError, match="not there after 60 s: no MPS control daemon is ready on node n1"):
        patient.switch(here.api, experiment(sharing=MPS, replicas=2), threading.Event(), hear)

    [(at_s, sentence)] = told  # the slices came first, and were not waited for long
    assert sentence == "waits up to 60 s for the nodes to be under mps-2: no MPS control daemon is ready on node n1."
    assert 15 <= at_s < 18


def test_a_switch_tells_what_of_it_the_plugin_needed(here, plugin):
    plugin.daemon, told = False, []

    def before(verb, target):
        plugin(verb, target)
        names = [pod["metadata"]["name"] for pod in plugin.cluster.store.listing(PODS, {})["items"]]
        if (
            here.mode.clock.now_s() >= 6 and "mps-daemon" not in names
        ):  # late, as a real one, and the plugin starts anew
            plugin.pod("mps-daemon", {"name": "mps-control-daemon-ctr"})
            plugin.cluster.store.delete(PODS.named("plugin"), {"gracePeriodSeconds": 0})
            plugin.pod("plugin", {"name": "sidecar", "env": [{"name": "NODE_LABEL", "value": LABEL}]})

    plugin.cluster.before = before
    made = here.mode.switch(here.api, experiment(sharing=MPS, replicas=2), threading.Event(), told.append)

    moments = [made.begun_s, made.written_s, made.allocatable_changed_s, made.plugin_restarted_s, made.accepted_s]
    assert moments == sorted(moments)
    assert made.plugin_restarted_s == made.shown_s >= 6
    facts = made.facts()
    assert facts["configuration"] == "mps-2"
    assert facts["plugin_seconds"] == made.shown_s - made.written_s
    assert 0 < facts["seconds"] - facts["plugin_seconds"] <= 5
    assert told == [
        f"switched the nodes to mps-2 in {facts['seconds']:.1f} s, of which the device plugin needed {facts['plugin_seconds']:.1f} s."
    ]
    assert here.mode.switch(here.api, experiment(sharing=MPS, replicas=2), threading.Event(), told.append) is None


def test_a_stale_label_is_not_believed(here, plugin):
    switch(here, MPS, replicas=8)
    plugin.discovery = False  # eight slices before and after: the plugin lends them by the old mode

    with pytest.raises(BackendError, match="node n1 shows mps and not time-slicing"):
        switch(here, SLICED)
    plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {"nvidia.com/gpu.replicas": "8"}}})
    with pytest.raises(BackendError, match=r"of node n1 the label nvidia.com/gpu.sharing-strategy=mps says mps"):
        switch(here, EXCLUSIVE, replicas=1)  # its capacity shows another mode already


def test_a_change_by_somebody_else_in_between_is_looked_at_and_kept(here, plugin):
    changes = ["sliced-8", "whole"]

    def before(verb, target):
        if verb == "patch" and changes:
            plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {LABEL: changes.pop()}}})
        plugin(verb, target)

    plugin.cluster.before = before
    switch(here, MPS)
    assert plugin.applied[-1] == "mps-2"

    plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {LABEL: "whole"}}})
    assert "keeps nvidia.com/device-plugin.config" in here.mode.restore(here.api)[0]
    assert plugin.labels[LABEL] == "whole"
    assert "nvidia.com/mps.capable" not in plugin.labels


def test_a_node_that_never_holds_still_is_given_up(here, plugin):
    def before(verb, _target):
        if verb == "patch":
            raise Refusal(409, "Conflict", "the object has been modified")

    plugin.cluster.before = before
    with pytest.raises(BackendError, match="node n1 was changed by another client each of 10 times"):
        switch(here, MPS)


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "not heard"])
def test_a_connection_that_is_lost_in_mid_switch_is_made_again(here, plugin, heard):
    lost = []

    def before(verb, target):
        if verb == "patch" and not lost:
            lost.append(verb)
            if heard:
                note = {"by": "mine", "gpus": 1, "before": {LABEL: None}, "set": {LABEL: "mps-2"}}
                labels = {LABEL: "mps-2", "nvidia.com/mps.capable": "true"}
                notes = {SWITCHED: json.dumps(note)}
                plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": labels, "annotations": notes}})
            raise ConnectionError
        plugin(verb, target)

    plugin.cluster.before = before
    switch(here, MPS)

    assert plugin.applied[-1] == "mps-2"
    here.mode.restore(here.api)
    assert LABEL not in plugin.labels


def test_an_api_server_that_refuses_in_mid_switch_is_not_the_configurations_failure(here, plugin):
    patched = []

    def before(verb, target):
        if patched:
            raise Refusal(403, "Forbidden", "no longer")  # an outage would be waited out for minutes
        patched.extend([verb] if verb == "patch" else [])
        plugin(verb, target)

    plugin.cluster.before = before
    with pytest.raises(ClusterError):
        switch(here, MPS)
    plugin.cluster.before = plugin
    plugin.deaf = frozenset({"mps-2"})

    with pytest.raises(BackendError, match="not there after 10 s"):  # waited for as if it were the first time
        switch(here, MPS)


def test_two_campaigns_do_not_switch_one_node(here, plugin):
    switch(here, MPS, by=SwitchedPlugin(here.spec, "another", StillClock()))

    with pytest.raises(BackendError, match=r"node n1 is switched by another campaign \(another\)"):
        switch(here, SLICED)

    assert here.mode.restore(here.api) == []
    assert plugin.applied[-1] == "mps-2"


def test_an_abort_ends_the_wait(here, plugin):
    plugin.deaf = frozenset(CONFIGS)
    abort = threading.Event()
    abort.set()

    with pytest.raises(BackendError, match="stopped while the nodes were switched to mps-2"):
        switch(here, MPS, abort=abort)
    assert here.mode.failed == set()


def test_gpus_are_divided_by_the_mig_manager_and_made_whole_again(here, plugin):
    here.mode.spec = here.spec = here.spec.model_copy(update={"mig_config": "all-1g.18gb"})
    found = dict(plugin.labels)

    def before(verb, target):
        if "nvidia.com/mig.config" in plugin.labels and verb == "get":
            plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {"nvidia.com/mig.config.state": "success"}}})
        plugin(verb, target)

    plugin.cluster.before = before
    switch(here, MIG, replicas=7)
    assert (plugin.labels["nvidia.com/mig.config"], plugin.applied[-1]) == ("all-1g.18gb", "divided")
    switch(here, EXCLUSIVE, replicas=1)
    assert (plugin.labels["nvidia.com/mig.config"], plugin.applied[-1]) == ("all-disabled", "whole")
    here.mode.restore(here.api)
    assert {key: plugin.labels.get(key) for key in (LABEL, "nvidia.com/mig.config")} == {
        key: found.get(key) for key in (LABEL, "nvidia.com/mig.config")
    }


def test_a_mig_manager_that_does_not_succeed_is_said(here, plugin):  # noqa: ARG001 - it is there, the manager is not
    here.mode.spec = here.spec.model_copy(update={"mig_config": "all-1g.18gb"})
    with pytest.raises(BackendError, match="the MIG manager calls node n1 pending"):
        switch(here, MIG)


def test_preflight_takes_what_the_nodes_can_be_switched_to(here, plugin):
    assert findings(here, experiment(sharing=MPS, replicas=8), experiment(sharing=SLICED, replicas=8)) == {}
    assert LABEL not in plugin.labels

    beside = ConditionSpec(name="beside", neighbours=[neighbour()])
    for too_many in ({"replicas": 9}, {"replicas": 8, "condition": beside}):
        told = findings(here, experiment(sharing=MPS, **too_many))["sharing"]
        assert "gives 9 replicas a GPU by mps" in told.message

    told = findings(here, experiment(sharing=MPS, replicas=9))["sharing"]
    assert "no configuration of gpu/plugin gives 9 replicas a GPU by mps" in told.message
    assert "mps-8 (mps, 8 a GPU)" in told.message
    here.spec = here.spec.model_copy(update={"device_plugin_configs": "gpu/other"})
    assert "there is no ConfigMap gpu/other" in findings(here, experiment(sharing=MPS))["sharing"].message


def test_preflight_says_that_nobody_heeds_the_label_or_counts_the_gpus(here, plugin):
    plugin.cluster.store.delete(PODS.named("plugin"), {"gracePeriodSeconds": 0})
    plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {"nvidia.com/gpu.count": None}}})
    found = findings(here, experiment(sharing=MPS))
    assert found["sharing"].severity is IssueLevel.WARNING
    assert "no config manager of the device plugin is seen on node n1" in found["sharing"].message
    assert "kubectl label node n1 nvidia.com/gpu.count=N" in found["gpus"].advice

    plugin.cluster.store.merge(plugin.at, {"metadata": {"labels": {LABEL: "sliced-4"}}})
    assert "gpus" not in findings(here, experiment(sharing=MPS))


def test_without_the_right_to_switch_the_command_for_an_administrator_is_said(here, plugin):
    plugin.cluster.denied |= {Review("patch", "nodes"), Review("get", "configmaps")}
    told = findings(here, experiment(sharing=MPS))["rights"]
    assert told.severity is IssueLevel.ERROR
    assert "may not switch how the nodes' GPUs are shared: patch nodes; get configmaps in gpu." in told.message
    assert "--verb=get,list,patch --resource=nodes && " in told.advice
    assert "--verb=get --resource=configmaps --resource-name=plugin" in told.advice
    assert "--serviceaccount=inference:harness" in told.advice

    here.spec = here.spec.model_copy(update={"device_plugin_configs": None})
    assert "rights" not in findings(here, experiment(sharing=SLICED))


def test_what_cannot_be_put_back_is_said_with_the_commands(here, plugin):
    switch(here, MPS)
    plugin.cluster.denied.add(Review("patch", "nodes"))

    (told,) = here.mode.restore(here.api)

    assert "kubectl label --overwrite node n1 nvidia.com/device-plugin.config- nvidia.com/mps.capable-" in told
    assert "kubectl annotate node n1 gpu-sharing-harness/switched-" in told


@pytest.mark.parametrize(
    ("content", "resource", "entry"),
    [
        (
            {"sharing": {"timeSlicing": {"renameByDefault": True, "resources": [{"name": GPU, "replicas": 4}]}}},
            f"{GPU}.shared",
            (SLICED, 4),
        ),
        (
            {"sharing": {"mps": {"resources": [{"name": GPU, "rename": "x.io/part", "replicas": 4}]}}},
            "x.io/part",
            (MPS, 4),
        ),
        (
            {
                "flags": {"migStrategy": "single"},
                "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}},
            },
            GPU,
            (SLICED, 4),
        ),
        (
            {
                "sharing": {
                    "timeSlicing": {
                        "resources": [{"name": "nvidia.com/mig-1g.5gb", "replicas": 2}, {"name": GPU, "replicas": 6}]
                    }
                }
            },
            GPU,
            (SLICED, 6),
        ),
    ],
    ids=["renamed by default", "renamed", "single and slices", "several resources"],
)
def test_an_entry_of_the_plugin_is_known_by_the_name_that_it_lends(content, resource, entry):
    known = device_plugin.configuration("entry", yaml.safe_dump({"version": "v1", **content}), resource)
    assert (known.mode, known.slices, known.resource) == (*entry, resource)
    assert known.gives(entry[0])
    assert not known.gives(MIG)


def test_what_is_no_configuration_for_the_resource_is_no_choice(here, plugin):
    renamed = {"timeSlicing": {"renameByDefault": True, "resources": [{"name": GPU, "replicas": 4}]}}
    broken = {"resources": [{"name": GPU, "replicas": "many"}]}
    data = {
        "renamed": yaml.safe_dump({"version": "v1", "sharing": renamed}),
        "broken": yaml.safe_dump({"version": "v1", "sharing": {"mps": broken}}),
        "no yaml": "{",
        "one slice": yaml.safe_dump(
            {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 1}]}}}
        ),
    }
    plugin.cluster.store.create(MAP, {"metadata": {"name": "odd"}, "data": data})
    spec = here.spec.model_copy(update={"device_plugin_configs": "gpu/odd"})
    assert [(entry.name, entry.resource) for entry in device_plugin.read(here.api.find, spec)] == [
        ("one slice", GPU),
        ("renamed", f"{GPU}.shared"),
    ]
    with pytest.raises(BackendError, match=r"renamed \(time-slicing, 4 a GPU, as nvidia.com/gpu.shared\)"):
        device_plugin.choose(device_plugin.read(here.api.find, spec), experiment(sharing=SLICED), [1], spec)


def test_no_gpu_anywhere_is_an_error(here, cluster, plugin):
    cluster.store.delete(plugin.at, {"gracePeriodSeconds": 0})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    cluster.store.create(NODES, {"metadata": {"name": "n2"}, "spec": {}})
    cluster.store.merge(Target("api/v1", "", "nodes", "n2", "status"), {"status": ready})
    assert "no usable node has a GPU" in findings(here, experiment(sharing=MPS))["gpus"].message


def test_what_a_node_showed_before_its_plugin_began_is_not_when_it_was_shown():
    def node(lends):
        return {"metadata": {"name": "n1"}, "status": {"allocatable": {GPU: str(lends)}}}

    container = {"env": [{"name": "NODE_LABEL", "value": LABEL}]}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [
        {"metadata": {"name": "p", "uid": "p"}, "spec": {"nodeName": "n1", "containers": [container]}, "status": ready}
    ]
    made = Switch("sliced-2", 0.0, 0.0, [node(2)], pods, KubernetesSpec())
    shown = []
    for now_s, lends, there in ((1.0, 2, pods), (2.0, 2, []), (3.0, 0, pods), (4.0, 2, pods), (5.0, 2, pods)):
        made.see(node(lends), there, 2, now_s, with_daemon=False)
        shown.append(made.shown_s)

    assert shown == [1.0, None, None, 4.0, 4.0]
