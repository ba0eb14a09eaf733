"""What preflight says of a cluster: each finding in the object's own words, and none where nothing is wrong."""

import base64
import hashlib
import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.backends.kubernetes import files, monitoring, preflight, probe
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.backends.kubernetes.nodes import check_gpus, check_image, check_nodes
from harness.campaign.plan import expand
from harness.errors import ClusterError, IssueLevel, PrometheusError, PrometheusUnavailableError
from harness.sharing import dra
from harness.sharing.node import takes
from harness.spec import ConditionSpec, KubernetesSpec, LayerSpec, SharingBy, WorkloadSpec
from tests.support.experiments import campaign, experiment, neighbour
from tests.support.fake_admission import furnish
from tests.support.fake_cluster import TOKEN, FakeCluster, Review
from tests.support.fake_cluster_store import Store, parse_path
from tests.support.simulated_clock import StillClock

ERROR, WARNING = IssueLevel.ERROR, IssueLevel.WARNING
GPU = "nvidia.com/gpu"
QUOTAS = "/api/v1/namespaces/inference/resourcequotas"
NODES = "/api/v1/nodes"
IMAGE = "localhost/gpu-sharing-harness/workload:1.0"
SPEC = KubernetesSpec(image=IMAGE)
TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
FULL_DISK = {"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure"}


def node(name="n1", gpus=10, *, ready="True", conditions=(), taints=(), labels=None, cordoned=False, images=(IMAGE,)):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints), **({"unschedulable": True} if cordoned else {})},
        "status": {
            "allocatable": {"cpu": "16", GPU: str(gpus)} if gpus else {"cpu": "16"},
            "conditions": [
                {"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "PLEG is not healthy."},
                *conditions,
            ],
            "images": [{"names": [image]} for image in images],
        },
    }


def pod(name, gpus, where="n1", *, phase="Running", labels=None, init=0):
    def container(number):
        return {"resources": {"limits": {GPU: str(number)} if number else {}}}

    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {"nodeName": where, "containers": [container(gpus)], "initContainers": [container(init)]},
        "status": {"phase": phase},
    }


@pytest.fixture
def serve(cluster, tmp_path):
    """Who asks a cluster with these objects, by path: an account that may not do or read some things."""

    def serving(objects=None, *, forbidden=(), refused=(), skew_s=0.0, token_lasts_s=None, claims=False, minor="36"):
        cluster.store, cluster.claims, cluster.minor, cluster.ahead_s = Store(), claims, minor, skew_s
        furnish(cluster.store)
        for path, item in {NODES: node(), **(objects or {})}.items():
            for each in item if isinstance(item, list) else [item]:
                put(cluster.store, parse_path(path), each)
        targets = [parse_path(path) for path in refused]
        cluster.denied = {Review("get" if target.name else "list", target.resource) for target in targets}
        cluster.denied |= {Review(*words.split()) for words in forbidden}
        end = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + (token_lasts_s or 0)}).encode()).decode()
        cluster.token = f"a.{end.rstrip('=')}.b" if token_lasts_s else TOKEN
        return KubernetesApi(KubernetesSpec(kubeconfig=str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))

    return serving


def put(store, target, item):
    at = target.named(target.name or item["metadata"]["name"])
    store.apply(at, item)
    if "status" in item:
        store.merge(replace(at, subresource="status"), {"status": item["status"]})


class NoPrometheus:
    """A server that is not there."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read(self, *_, **__):
        raise PrometheusError("Prometheus at http://x cannot be reached.")

    query = read


def findings(api, spec=SPEC, experiments=()):
    found = preflight.Preflight(api, spec, experiments, "mine").check(NoPrometheus)
    return {(one.check, one.severity): one.message for one in found if one.check != "prometheus"}


def gpu_findings(nodes, pods, replicas=8, spec=SPEC):
    return list(check_gpus(nodes, pods, spec, replicas, "mine"))


def test_a_cluster_that_is_fit_gets_no_remark(serve):
    assert findings(serve()) == {}


def test_of_a_cluster_whose_only_node_is_cordoned_nothing_is_said_of_its_gpus(serve):
    one = node(cordoned=True)
    switching = SPEC.model_copy(update={"device_plugin_configs": "nvidia/configs"})
    api = serve({NODES: one, "/api/v1/namespaces/nvidia/configmaps/configs": {"data": {}}})
    for spec in (SPEC, switching):
        assert {check for check, severity in findings(api, spec) if severity is ERROR} == {"nodes"}


@pytest.mark.parametrize("status", [None, 503, 401])
def test_an_api_server_that_does_not_answer_or_knows_us_no_more_is_away(status):
    def refuse(_path):
        raise ClusterError("no.", advice="Is it running?", status=status)

    [found] = preflight.Preflight(SimpleNamespace(list=refuse), SPEC, [], "mine").check(NoPrometheus)
    assert (found.check, found.severity, found.advice, found.away) == ("cluster", ERROR, "Is it running?", True)


def test_a_token_that_ends_between_experiments_is_waited_for_until_the_kubeconfig_has_another(tmp_path):
    def away(backend):
        return {one.message for one in backend.check([experiment()]) if one.check == "cluster" and one.away}

    with FakeCluster() as cluster:
        kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        backend = KubernetesBackend(
            KubernetesSpec(kubeconfig=str(kubeconfig), prometheus_url="http://127.0.0.1:9"), "id"
        )
        assert away(backend) == set()

        cluster.token = "another"
        assert [said for said in away(backend) if "does not accept these credentials (401" in said]

        cluster.write_kubeconfig(kubeconfig)
        assert away(backend) == set()


class RestartingPrometheus(NoPrometheus):
    """It reads its log."""

    def read(self, *_, **__):
        raise PrometheusUnavailableError("Prometheus at http://x cannot be reached.")


@pytest.mark.parametrize(("server", "away"), [(NoPrometheus, False), (RestartingPrometheus, True)])
def test_a_prometheus_that_does_not_answer_is_away_and_one_that_refuses_is_not(serve, server, away):
    [found] = preflight.Preflight(serve(), SPEC, [], "mine").check(server)
    assert (found.check, found.severity, found.away) == ("prometheus", ERROR, away)
    assert "cannot be reached" in found.message


def restarted(node):
    """The kubelet has started anew, and no device plugin has registered with it."""
    node["status"]["capacity"] = {GPU: "0"}
    return node


@pytest.mark.parametrize(
    ("nodes", "away"),
    [
        ([node(ready="Unknown")], True),
        ([node(cordoned=True)], True),
        ([], True),
        ([node(gpus=0)], True),
        ([node(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])], True),
        ([node(gpus=4), node("n2", cordoned=True)], True),
        ([node(gpus=4), restarted(node("n2", gpus=0))], True),
        ([node(gpus=4), node("n2", gpus=0)], False),
        ([node(taints=[TAINT])], False),
    ],
)
def test_nodes_and_gpus_that_went_away_may_come_back_and_too_few_are_too_few(serve, nodes, away):
    api = serve({NODES: nodes})
    plan = list(expand(campaign(replicas=[8])))
    found = preflight.Preflight(api, SPEC, plan, "mine").check(RestartingPrometheus)
    errors = [one for one in found if one.severity is ERROR and one.check != "prometheus"]
    assert errors
    assert {one.away for one in errors} == {away}
    assert not any(one.away for one in found if one.severity is WARNING)


@pytest.mark.parametrize(
    ("nodes", "spec", "severity", "words"),
    [
        ([node(ready="False")], SPEC, ERROR, "node n1 takes no replica: it is not ready (Ready, KubeletNotReady: PLEG"),
        ([node(ready="Unknown"), node("n2")], SPEC, WARNING, "node n1 takes no replica: it is not ready"),
        ([node(cordoned=True)], SPEC, ERROR, "it is cordoned"),
        ([node(taints=[TAINT])], SPEC, ERROR, "it has the taint dedicated=x:NoSchedule"),
        ([node(conditions=[FULL_DISK])], SPEC, ERROR, "node n1 is under DiskPressure, KubeletHasDiskPressure"),
        ([], SPEC, ERROR, "the cluster has no node"),
        ([node()], KubernetesSpec(node_selector={"pool": "gpu"}), ERROR, "no node has the labels pool=gpu"),
    ],
)
def test_nodes_that_are_not_fit(nodes, spec, severity, words):
    [found] = check_nodes(nodes, spec)
    assert found.severity is severity
    assert words in found.message


@pytest.mark.parametrize(("lends", "severities"), [(7, [WARNING]), (0, [WARNING, ERROR])])
def test_slices_that_the_device_plugin_withdrew_are_told(lends, severities):
    sick = node(gpus=lends)
    sick["status"]["capacity"] = {GPU: "8"}
    found = gpu_findings([sick], [], replicas=3)
    assert [one.severity for one in found] == severities
    assert all(f"node n1 advertises {lends} of its 8 nvidia.com/gpu" in one.message for one in found)
    assert all("Xid" in one.advice for one in found)


def test_a_taint_that_is_tolerated_and_a_control_plane_that_stands_apart_are_nothing():
    tolerant = KubernetesSpec(tolerations=[{"key": GPU, "effect": "NoSchedule"}])
    assert list(check_nodes([node(taints=[{"key": GPU, "effect": "NoSchedule"}])], tolerant)) == []
    master = node(
        "cp",
        labels={"node-role.kubernetes.io/control-plane": ""},
        taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
    )
    assert list(check_nodes([master, node()], SPEC)) == []
    assert len(list(check_nodes([master], SPEC))) == 1


@pytest.mark.parametrize(
    ("requirement", "taken"),
    [
        ({"operator": "In", "values": ["a"]}, ["one"]),
        ({"operator": "NotIn", "values": ["a"]}, ["two", "none"]),
        ({"operator": "Exists"}, ["one", "two"]),
        ({"operator": "DoesNotExist"}, ["none"]),
    ],
)
def test_nodes_that_the_affinity_leaves_out_lend_nothing(requirement, taken):
    nodes = [node("one", labels={"pool": "a"}), node("two", labels={"pool": "b"}), node("none")]
    spec = KubernetesSpec(node_affinity=[{"key": "pool", **requirement}])
    assert [one["metadata"]["name"] for one in nodes if takes(one, spec)] == taken
    assert gpu_findings(nodes, [], 10 * len(taken), spec) == []
    [found] = gpu_findings(nodes, [], 10 * len(taken) + 1, spec)
    assert f"there is room for {10 * len(taken)}" in found.message


@pytest.mark.parametrize(
    ("gpus", "replicas", "each", "said"),
    [
        ([4], 8, 1, "8 replicas need 8 nvidia.com/gpu, and there is room for 4: n0 offers 4"),
        ([4, 4], 8, 1, ""),
        ([3, 3], 3, 2, "room for 2"),
        ([0], 8, 1, "none of 1 usable nodes advertises nvidia.com/gpu"),
        ([0], 8, 0, ""),
    ],
)
def test_more_replicas_than_slices(gpus, replicas, each, said):
    nodes = [node(f"n{index}", gpus=count) for index, count in enumerate(gpus)]
    found = gpu_findings(nodes, [], replicas, KubernetesSpec(gpus_per_replica=each))
    assert [one.severity for one in found] == [ERROR] * bool(said)
    assert all(said in one.message for one in found)


def test_neighbours_need_slices_too(serve):
    beside = ConditionSpec(name="beside", neighbours=[neighbour(replicas=2)])
    api = serve({NODES: node(gpus=4)})

    told = findings(api, experiments=[experiment(replicas=3, condition=beside)])

    assert "5 replicas need 5 nvidia.com/gpu, and there is room for 4" in told["gpus", ERROR]


def test_what_replicas_reserve_is_counted_against_the_nodes(serve):
    reserves = SPEC.model_copy(update={"reserve": {"cpu": "4"}})
    found = findings(serve(), reserves, [experiment(replicas=5)])
    assert "5 pods reserve 4 of cpu each (tiny), and there is room for 4: n1 has 16 of cpu" in found["room", ERROR]
    assert not [check for check, _ in findings(serve(), reserves, [experiment(replicas=4)]) if check == "room"]
    unreadable = serve(refused={"/api/v1/pods"})
    assert "not checked" in findings(unreadable, reserves, [experiment(replicas=4)])["room", WARNING]
    assert ("room", WARNING) not in findings(unreadable, SPEC, [experiment(replicas=4)]), "nobody had to ask"


def test_foreign_pods_are_named_and_counted_and_ours_are_not():
    pods = [
        pod("notebook", 1),
        pod("mine", 3, labels={"gpu-sharing-harness/campaign": "mine"}),
        pod("done", 3, phase="Succeeded"),
        pod("elsewhere", 3, "n9"),
        pod("initial", 0, init=2),
        pod("cpu", 0),
    ]
    short, foreign = gpu_findings([node(gpus=10)], pods)
    assert "of which others hold 3" in short.message
    assert foreign.severity is WARNING
    assert "default/notebook, default/initial." in foreign.message
    assert [one.severity for one in gpu_findings([node(gpus=11)], pods)] == [WARNING]


def test_two_gpus_where_one_was_expected():
    two = node(labels={"nvidia.com/gpu.count": "2"})
    [found] = gpu_findings([two], [], spec=KubernetesSpec(expected_gpus=1))
    assert "2 GPUs where 1 was expected (n1: 2)" in found.message
    assert gpu_findings([two], [], spec=KubernetesSpec(expected_gpus=2)) == []
    assert gpu_findings([two], [], spec=KubernetesSpec(expected_gpus=None)) == []


def test_rights_that_lack_are_all_in_one_sentence(serve):
    found = findings(serve(forbidden=["create deployments", "get pods/log"]))
    assert found == {
        ("rights", ERROR): "this account may not: create deployments in inference; get pods/log in inference."
    }
    assert findings(serve(forbidden=["create deployments"]), KubernetesSpec(image=IMAGE, kind="job")) == {}


@pytest.mark.parametrize("minor", ["28+", "8"])
def test_a_cluster_that_is_too_old_for_jobs_is_named_before_anything_starts(serve, minor):
    api = serve(minor=minor)
    job = KubernetesSpec(image=IMAGE, kind="job")
    asked = running_already("http://engine:8000")

    for found in (findings(api, job), findings(api, experiments=[asked])):
        assert f"the cluster is Kubernetes v1.{minor}, and" in found["version", ERROR]
    assert "which Kubernetes knows from 1.29 on" in findings(api, job)["version", ERROR]
    assert findings(api) == {}, "Deployments are as old as can be"


def running_already(url, **server):
    workload = WorkloadSpec.model_validate({"name": "llm", "server": {"url": url, **server}})
    return experiment(replicas=1).model_copy(update={"workload": workload})


def test_what_asks_a_server_that_runs_already_needs_jobs_and_files_need_config_maps(serve, tmp_path):
    asked = running_already("http://engine:8000", requests={"file": str(tmp_path / "texts.jsonl")})
    (tmp_path / "texts.jsonl").write_text('{"prompt": "a"}\n')

    found = findings(serve(forbidden=["create jobs", "delete configmaps"]), experiments=[asked])

    assert found["rights", ERROR] == ("this account may not: create jobs in inference; delete configmaps in inference.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "texts.jsonl:1: input_length is missing"),
        ('{"prompt": "much"}', "are larger than 0.016 MB when compressed, and no more is carried into a pod"),
    ],
)
def test_a_file_that_cannot_be_read_or_carried_is_refused(serve, tmp_path, monkeypatch, text, said):
    path = tmp_path / "texts.jsonl"
    path.write_text(text)
    if "much" in text:
        monkeypatch.setattr(files, "PART_BYTES", 1000)
        path.write_text("".join(f'{{"prompt": "{hashlib.sha512(str(n).encode()).hexdigest()}"}}\n' for n in range(400)))
    asked = running_already("http://engine:8000", requests={"file": str(path)})

    assert said in findings(serve(), experiments=[asked])["server", ERROR]


def test_a_file_is_compressed_once_for_all_checks_and_attempts_and_again_when_it_is_another(
    serve, tmp_path, monkeypatch
):
    compressed, compress = [], files.gzip.compress
    monkeypatch.setattr(files.gzip, "compress", lambda data, **how: compressed.append(data) or compress(data, **how))
    path = tmp_path / "texts.jsonl"
    path.write_text('{"prompt": "a"}\n')
    asked = running_already("http://engine:8000", requests={"file": str(path)})

    for attempt in ("one", "two"):
        assert ("server", ERROR) not in findings(serve(), experiments=[asked])
        [carried] = files.carried(asked.workload.server, SPEC, attempt, {})
    assert compressed == [b'{"prompt": "a"}\n']

    path.write_text('{"prompt": "another"}\n')
    [other] = files.carried(asked.workload.server, SPEC, "three", {})
    assert len(compressed) == 2
    assert other.body["binaryData"] != carried.body["binaryData"]


def test_what_may_not_be_read_is_said_not_to_be_checked(serve):
    found = findings(serve(refused=["/api/v1/pods", QUOTAS]))
    lacking = found.pop(("rights", ERROR))
    assert lacking == "this account may not: list pods in inference."
    assert set(found) == {("gpus", WARNING), ("quota", WARNING)}
    assert all(message.startswith("not checked: tester may not list") for message in found.values())
    assert ("nodes", WARNING) in findings(serve(refused=[NODES]))


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_queue_is_looked_for_by_its_name(serve, version):
    waiting = KubernetesSpec(image=IMAGE, kind="job", queue_name="gpus")
    queue = {f"/apis/kueue.x-k8s.io/{version}/namespaces/inference/localqueues/gpus": {"spec": {}}}
    assert findings(serve(queue), waiting) == {}
    assert set(findings(serve(), waiting)) == {("queue", ERROR)}


def test_a_token_that_ends_within_the_planned_time_is_told_before_it_is_spent(serve):
    hour = experiment(timing={"step_s": 5, "stabilise_s": 60, "record_s": 3540, "cooldown_s": 0})
    assert findings(serve(token_lasts_s=7300), experiments=[hour, hour]) == findings(serve(), experiments=[hour, hour])
    after_half = serve(token_lasts_s=5430)
    said = findings(after_half, experiments=[hour, hour])["token", WARNING]
    assert "UTC, in 90 min, and what is planned takes 120 min." in said
    assert ("token", WARNING) not in findings(after_half, experiments=[hour])
    assert "in 0 min" in findings(serve(token_lasts_s=-5), experiments=[hour])["token", WARNING]


def test_clocks_that_differ(serve):
    said = findings(serve(skew_s=-60))["clock", WARNING]
    assert re.search("6[01] s behind", said), "a server tells whole seconds"


@pytest.mark.parametrize(
    ("spec", "images", "severity"),
    [
        (SPEC, [IMAGE], None),
        (SPEC, ["other:1"], ERROR),
        (SPEC, [f"other:{number}" for number in range(50)], None),
        (KubernetesSpec(image="registry.example/w:1"), [], None),
        (KubernetesSpec(image="registry.example/w:1", image_pull_policy="Never"), [], ERROR),
        (KubernetesSpec(image="registry.example:5000/w"), [], WARNING),
        (KubernetesSpec(image="registry.example/w:latest"), [], WARNING),
        (KubernetesSpec(image="registry.example/w@sha256:" + 64 * "0"), [], None),
    ],
)
def test_the_image(spec, images, severity):
    found = list(check_image([node(images=images)], spec, spec.image))
    assert [one.severity for one in found] == ([severity] if severity else [])


@pytest.mark.parametrize(("lists_after_s", "severity"), [(26, None), (60, ERROR)])
def test_an_image_that_was_just_loaded_is_waited_for(serve, lists_after_s, severity):
    api, clock = serve({NODES: node(images=[])}), StillClock()

    def nodes(path, **selected):
        listed = KubernetesApi.list(api, path, **selected)
        return [node()] if path == NODES and clock.now_s() >= lists_after_s else listed

    api.list = nodes
    issues = preflight.Preflight(api, SPEC, [], "mine", clock).check(NoPrometheus)
    [*found] = [issue for issue in issues if issue.check == "image"]
    assert [issue.severity for issue in found] == ([severity] if severity else [])
    assert clock.now_s() <= preflight.LISTED_S
    assert "registry has it" not in str(found)


def target(**discovered):
    return {"health": "down", "labels": {"job": "pods", "instance": "10.0.0.7:9400"}, "discoveredLabels": discovered}


@pytest.mark.parametrize(
    ("discovered", "counted"),
    [({}, 1), ({"__meta_kubernetes_pod_label_gpu_sharing_harness_campaign": "mine"}, 0)],
)
def test_a_replica_that_has_ended_is_no_target_that_is_down(discovered, counted):
    assert len(list(probe._targets([target(**discovered)]))) == counted


def test_the_image_of_a_layers_library_is_looked_at_too(serve):
    layer = LayerSpec(preload="/opt/hook.so", preload_image="registry.example/hook:latest")
    hooked = experiment(condition=ConditionSpec(name="hooked", layer=layer))
    api = serve()

    assert findings(api, experiments=[hooked])["image", WARNING].startswith("registry.example/hook:latest may")


def deployment(replicas):
    return {"metadata": {"name": "grafana"}, "spec": {"replicas": replicas}}


GRAFANA = monitoring.grafana_path(SPEC)


def test_grafana_gets_back_what_it_had(serve):
    api = serve({GRAFANA: deployment(2)})
    assert "is scaled down to 0" in monitoring.quiet_grafana(api, SPEC, "mine")[0]
    assert api.get(GRAFANA)["spec"]["replicas"] == 0
    assert monitoring.quiet_grafana(api, SPEC, "mine") == []
    assert "has its replicas again" in monitoring.restore_grafana(api, SPEC)[0]
    assert api.get(GRAFANA)["spec"]["replicas"] == 2
    assert api.get(GRAFANA)["metadata"].get("annotations", {}) == {}
    assert monitoring.restore_grafana(api, SPEC) == []


def test_grafana_that_somebody_scaled_up_meanwhile_stays_as_it_is(serve):
    api = serve({GRAFANA: deployment(2)})
    monitoring.quiet_grafana(api, SPEC, "mine")
    api.patch(GRAFANA, {"spec": {"replicas": 5}})
    assert monitoring.restore_grafana(api, SPEC) == []
    assert (api.get(GRAFANA)["spec"]["replicas"], api.get(GRAFANA)["metadata"]["annotations"]) == (5, {})


def test_no_grafana_and_one_that_may_not_be_touched(serve):
    assert monitoring.quiet_grafana(serve(), SPEC, "mine") == monitoring.restore_grafana(serve(), SPEC) == []
    [sentence] = monitoring.quiet_grafana(serve(refused=[GRAFANA]), SPEC, "mine")
    assert "was not scaled down" in sentence
    assert "--replicas=1" in monitoring.restore_grafana(serve(refused=[GRAFANA]), SPEC)[0]
    found = findings(serve(forbidden=["patch deployments"]), KubernetesSpec(image=IMAGE, kind="job"))
    assert "may not scale monitoring/grafana down" in found["rights", WARNING]


def test_grafana_that_is_left_running_is_a_cost(serve):
    api = serve({GRAFANA: deployment(1)})
    found = findings(api, KubernetesSpec(image=IMAGE, grafana="leave"))
    assert "runs beside the measurement: what it costs is not known" in found["grafana", WARNING]
    assert monitoring.quiet_grafana(api, KubernetesSpec(grafana="leave"), "mine") == []


def test_claims_need_an_api_server_that_has_them(serve):
    spec = SPEC.model_copy(update={"sharing_by": SharingBy.DRA})
    assert findings(serve(), spec) == {("claims", ERROR): "the API server has no resource.k8s.io/v1."}
    classes = {f"{dra.API}/deviceclasses/{dra.GPU_CLASS}": {}}
    assert findings(serve(classes, claims=True), spec, [experiment()]) == {
        ("claims", ERROR): "the ResourceSlices of gpu.nvidia.com list no GPU on n1."
    }


def test_of_a_pool_only_what_is_newest_is_there_and_of_other_drivers_nothing():
    def listed(name, generation, driver="gpu.nvidia.com"):
        pool = {"name": "n1", "generation": generation, "resourceSliceCount": 1}
        return {"spec": {"driver": driver, "nodeName": "n1", "pool": pool, "devices": [{"name": name}]}}

    found = dra.devices([listed("gpu-0", 1), listed("gpu-1", 2), listed("nic-0", 3, "net.example")])
    assert [device for _, device, _ in found] == [dra.ClaimedDevice("n1", "gpu-1")]
