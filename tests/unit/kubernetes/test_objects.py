"""The objects that the harness makes: valid for two minors, as the policy wants them, named apart."""

import json
import re
from pathlib import Path

import jinja2
import pytest
import yaml

from harness.backends.kubernetes.objects import count_of, load_pods, without_gpu, workload
from harness.campaign.plan import expand
from harness.campaign.source import read_source
from harness.spec import (
    ConditionSpec,
    KubernetesSpec,
    LayerSpec,
    MpsLimits,
    ScenarioSpec,
    Sharing,
    Toleration,
    WorkloadSpec,
)
from harness.spec.pods import NodeRequirement
from harness.spec.replica import ReplicaSpec
from tests.support import schemas
from tests.support.experiments import experiment
from tests.support.pod_security import violations

ROOT = Path(__file__).parents[3]
MINORS = ("1.34", "1.35", "1.36")
ACCESS = {
    "access_namespace": "inference",
    "access_replica_account": "replica",
    "access_account": "harness",
    "access_monitoring_namespace": "monitoring",
    "access_prometheus": "prometheus:9090",
    "access_grafana": "grafana",
}
FULL = {
    "node_selector": {"pool": "gpu"},
    "tolerations": [Toleration(key="nvidia.com/gpu", effect="NoSchedule"), Toleration()],
    "image": "registry.example:5000/team/workload@sha256:" + 64 * "a",
    "labels": {"team": "ml", "example.com/cost-centre": "42"},
    "annotations": {"sidecar.istio.io/inject": "false", "note": 'a "quoted" word: #1'},
    "image_pull_secrets": ["registry", "mirror.example"],
    "priority_class": "batch-high",
    "scheduler_name": "kai-scheduler",
    "node_affinity": [
        NodeRequirement(key="pool", operator="In", values=["a", "b"]),
        NodeRequirement(key="spot", operator="DoesNotExist"),
    ],
    "run_as_user": None,
    "placement": "packed",
    "reserve": {"cpu": "2", "memory": "8Gi"},
    "limit": {"memory": "8Gi", "ephemeral-storage": "10Gi"},
    "client_reserve": {"cpu": "250m"},
    "client_limit": {"cpu": "1"},
}

SERVER = {
    "image": "registry.example/vllm:1",
    "args": ["--model", "/models/a", "--port", "{port}"],
    "env": {"CACHE": "/tmp/{port}", "NOTE": 'a "quoted" & <odd> word'},
    "secret_env": {"HF_TOKEN": "hub/token", "LLM_KEY": "llm/api-key"},
    "claims": {"/models": "models"},
    "reserve": {"cpu": "4", "memory": "16Gi"},
    "api_key_env": "LLM_KEY",
    "protocol": "openai-chat",
    "stop_timeout_s": 100,
}


def serving(**changes):
    workload = WorkloadSpec.model_validate({"name": "llm", "server": SERVER | changes})
    return experiment(replicas=3).model_copy(update={"workload": workload})


def made(of=None, *, attempt="one-1", **changes):
    return workload(of or experiment(replicas=3), Path(attempt), KubernetesSpec(**changes), "c0ffee")


def access(**changes):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=True)
    text = (ROOT / "templates/kubernetes/workloads/access.yaml.j2").read_text()
    return environment.from_string(text).render(ACCESS | changes)


def container(body):
    (only,) = body["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("kind", ["deployment", "job"])
@pytest.mark.parametrize("changes", [{}, FULL, {"gpus_per_replica": 0, "runtime_class": None}])
def test_what_is_made_is_valid_and_passes_the_pod_security_level_restricted(minor, kind, changes):
    for of in (experiment(replicas=3), serving(command=["vllm", "serve"])):
        body = made(of, kind=kind, **changes).body
        schemas.validate(body, minor)
        assert violations(body["spec"]["template"]["spec"]) == []


@pytest.mark.parametrize("minor", MINORS)
def test_the_rights_are_valid(minor):
    documents = list(yaml.safe_load_all(access()))
    assert len(documents) == 8
    for document in documents:
        schemas.validate(document, minor)
    rules = [rule for one in documents for rule in one.get("rules", [])]
    assert not [rule for rule in rules if "*" in str(rule)], "every right has a name"
    assert not [rule for rule in rules if "pods/exec" in rule["resources"]]
    [secret] = [rule for rule in rules if "secrets" in rule["resources"]]
    assert (secret["resourceNames"], secret["verbs"]) == (["prometheus-access"], ["get"]), (
        "the login of Prometheus alone"
    )


@pytest.mark.parametrize("minor", MINORS)
def test_files_come_as_config_maps_that_only_the_client_mounts(tmp_path, minor):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "trace.jsonl").write_text("[]")
    asked = serving(trace={"file": str(tmp_path / "trace.jsonl")}, requests={"tokenizer": str(tmp_path)})
    found = made(asked)

    assert [list(one.body["binaryData"]) for one in found.beside] == [["tokenizer.json.000"], ["trace.jsonl.000"]]
    for one in (found.body, *(one.body for one in found.beside)):
        schemas.validate(one, minor)
    assert violations(found.body["spec"]["template"]["spec"]) == []
    client, server = found.body["spec"]["template"]["spec"]["containers"]
    assert "given" in {one["name"] for one in client["volumeMounts"]}
    assert "given" not in {one["name"] for one in server["volumeMounts"]}
    told = json.loads(next(one["value"] for one in client["env"] if one["name"] == "REPLICA_SPEC"))["workload"][
        "server"
    ]
    assert (told["trace"]["file"], told["requests"]["tokenizer"]) == ("trace.jsonl", "tokenizer.json")


def test_the_rights_of_the_example_are_those_of_the_template():
    assert (ROOT / "examples/cluster/access.yaml").read_text().strip() == access().strip()


def test_the_rights_of_one_namespace_take_nothing_from_another():
    def objects(namespace):
        named = [(one["kind"], one["metadata"]) for one in yaml.safe_load_all(access(access_namespace=namespace))]
        return {(kind, metadata.get("namespace"), metadata["name"]) for kind, metadata in named}

    assert len(objects("inference")) == len(objects("team-b")) == 8
    assert not objects("inference") & objects("team-b")


def test_the_campaign_of_the_example_is_valid():
    source = read_source(str(ROOT / "examples/cluster/campaign.yaml"))

    assert [one.replicas for one in expand(source.spec)] == [1, 3, 8]


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_a_replica_has_no_rights_no_limits_and_a_gpu(kind):
    spec = made(kind=kind).body["spec"]["template"]["spec"]
    only = container(made(kind=kind).body)

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert only["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert spec["runtimeClassName"] == "nvidia"
    assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])


def test_the_settings_of_the_pods_are_where_the_cluster_looks_for_them():
    body = made(kind="job", queue_name="team-a", **FULL).body
    template = body["spec"]["template"]

    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    for labels in (body["metadata"]["labels"], template["metadata"]["labels"]):
        assert FULL["labels"].items() <= labels.items()
        assert labels["gpu-sharing-harness/campaign"] == "c0ffee"
    assert FULL["annotations"].items() <= template["metadata"]["annotations"].items()
    assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror.example"}]
    assert template["spec"]["priorityClassName"] == "batch-high"
    assert template["spec"]["schedulerName"] == "kai-scheduler"
    [term] = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "pool", "operator": "In", "values": ["a", "b"]},
        {"key": "spot", "operator": "DoesNotExist"},
    ]
    [wish] = template["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "topologySpreadConstraints" not in template["spec"]
    [spread] = made().body["spec"]["template"]["spec"]["topologySpreadConstraints"]
    for chosen, labels in (
        (wish["podAffinityTerm"], template["metadata"]["labels"]),
        (spread, spread["labelSelector"]["matchLabels"]),
    ):
        assert chosen["topologyKey"] == "kubernetes.io/hostname"
        assert chosen["labelSelector"]["matchLabels"].items() <= labels.items()


def test_the_server_has_the_gpu_and_the_client_beside_it_asks():
    spec = made(serving()).body["spec"]["template"]["spec"]
    client, server = spec["containers"]
    told = {entry["name"]: entry for entry in client["env"]}

    assert (client["name"], server["name"]) == ("replica", "server")
    assert "resources" not in client
    assert told["NVIDIA_VISIBLE_DEVICES"]["value"] == "void"
    assert server["resources"] == {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "4", "memory": "16Gi"}}
    assert spec["shareProcessNamespace"] is True
    assert spec["terminationGracePeriodSeconds"] >= 100 + 10
    assert server["args"] == ["--model", "/models/a", "--port", "8080"]
    assert "command" not in server, "the entrypoint of the image"
    replica = ReplicaSpec.model_validate_json(told["REPLICA_SPEC"]["value"])
    assert (replica.beside, replica.workload.server.pod_port) == (True, 8080)
    assert "startupProbe" in client, "the pod is ready when the client has had an answer"
    assert "startupProbe" not in server
    assert {volume["name"]: volume for volume in spec["volumes"]}["claim-1"]["persistentVolumeClaim"] == {
        "claimName": "models",
        "readOnly": True,
    }
    assert {"name": "claim-1", "mountPath": "/models", "readOnly": True} in server["volumeMounts"]


OWN = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi", "ephemeral-storage": "10Gi"}}
ASKS = {"requests": {"cpu": "250m"}, "limits": {"cpu": "1"}}


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_what_computes_and_what_asks_have_what_the_campaign_says_beside_the_gpu(kind):
    with_gpu = {**OWN, "limits": {**OWN["limits"], "nvidia.com/gpu": 1}}
    measured = made(kind=kind, **FULL)
    spec = KubernetesSpec(kind=kind, **FULL)
    beside = workload(experiment(), Path("noisy"), spec, "c0ffee", measured=measured)
    layer = LayerSpec(preload="/opt/lib/libhook.so", preload_image="registry.example/hook:1.2")
    layered = made(experiment(condition=ConditionSpec(name="hooked", layer=layer)), kind=kind, **FULL)
    sending = load_pods(experiment(), Path("one-1"), spec, "c0ffee", plan="{}")

    for one in (measured, beside, layered):
        assert container(one.body)["resources"] == with_gpu
    [copies] = layered.body["spec"]["template"]["spec"]["initContainers"]
    assert copies["resources"] == OWN, "what comes before it holds no GPU"
    assert container(made(kind=kind, gpus_per_replica=0, **FULL).body)["resources"] == OWN
    assert container(sending.body)["resources"] == ASKS


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({"gpu_resource": None, "annotations": {"gpu-fraction": "0.5"}}, {}),
        ({"extra_resources": {"nvidia.com/gpumem": 10_000}}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000}),
    ],
    ids=["KAI", "HAMi"],
)
def test_a_part_of_a_gpu_is_asked_for_as_who_divides_it_wants(changes, limits):
    pod = made(**changes).body["spec"]["template"]
    assert container(made(**changes).body).get("resources", {}).get("limits", {}) == limits
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert changes.get("annotations", {}).items() <= pod["metadata"]["annotations"].items()


@pytest.mark.parametrize("changes", [{}, {"annotations": {"a": "b"}, "device_plugin_configs": "a/b"}])
def test_a_gpu_that_nobody_divides_is_not_without_a_resource(changes):
    with pytest.raises(ValueError, match="`gpu_resource: null`"):
        KubernetesSpec(gpu_resource=None, **changes)


def test_a_claim_stands_beside_what_is_reserved():
    only = container(made(sharing_by="dra", **FULL).body)
    assert only["resources"] == {"claims": [{"name": "gpu"}], **OWN}


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_each_of_several_gpus_that_are_shared_by_claims_has_an_owner_whose_pods_name_its_claim(kind):
    shared = experiment(replicas=5, gpus=2, sharing=Sharing.MPS)
    both = made(shared, kind=kind, sharing_by="dra", **FULL)

    assert [one.body["metadata"]["name"] for one in both.owners] == [f"{both.name}-gpu0", f"{both.name}-gpu1"]
    assert [count_of(one.body) for one in both.owners] == [3, 2]
    assert [one.body["metadata"]["name"] for one in both.beside] == list(both.claims)
    named = [one.body["spec"]["template"]["spec"]["resourceClaims"] for one in both.owners]
    assert named == [[{"name": "gpu", "resourceClaimName": claim}] for claim in both.claims]
    assert len(set(both.claims)) == 2
    for one in both.owners:
        template, labels = one.body["spec"]["template"], one.body["spec"]["template"]["metadata"]["labels"]
        schemas.validate(one.body, "1.36")
        assert violations(template["spec"]) == []
        assert labels["gpu-sharing-harness/experiment"] == both.name, "everything that follows them goes by this"
        assert "REPLICA" not in {each["name"] for each in container(one.body)["env"]}, "their indices are the same"
        if kind == "deployment":
            chosen = one.body["spec"]["selector"]["matchLabels"]
            assert chosen == {name: labels[name] for name in chosen}
    if kind == "deployment":
        first, second = (one.body["spec"]["selector"]["matchLabels"] for one in both.owners)
        assert first != second, "neither controller takes the other's pods for its own"


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        (experiment(replicas=1, gpus=4, sharing=Sharing.MPS), {"sharing_by": "dra"}),
        (experiment(replicas=3, gpus=3, sharing=Sharing.EXCLUSIVE), {"sharing_by": "dra"}),
        (experiment(replicas=4, gpus=2, sharing=Sharing.TIME_SLICING), {}),
    ],
)
def test_one_owner_is_enough_for_one_gpu_for_claims_of_each_pod_and_for_the_device_plugin(of, changes):
    alone = made(of, **changes)
    assert [one.path for one in alone.owners] == [f"{alone.collection}/{alone.name}"]
    assert list(alone.claims) == ([alone.name] if changes else [])


def test_a_server_has_its_own_and_its_client_that_of_what_asks():
    limited = serving(reserve={"cpu": "4"}, limit={"cpu": "4", "memory": "16Gi"})
    client, server = made(limited, **FULL).body["spec"]["template"]["spec"]["containers"]
    assert client["resources"] == ASKS
    assert server["resources"] == {
        "requests": {"cpu": "4"},
        "limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1},
    }
    elsewhere = WorkloadSpec.model_validate({"name": "llm", "server": {"url": ["http://llm.models:8000"]}})
    asked = experiment(replicas=1).model_copy(update={"workload": elsewhere})
    asks = workload(asked, Path("a"), without_gpu(KubernetesSpec(**FULL)), "c0ffee")
    assert container(asks.body)["resources"] == ASKS


def test_limits_under_mps_are_set_in_the_container_that_holds_the_gpu():
    limits = {"sharing": Sharing.MPS, "mps": MpsLimits(share="1/N", pinned_memory_gb=2)}
    asked = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.3333", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2000M"}
    found = []
    for of in (experiment(replicas=3), serving()):
        under = of.model_copy(update=limits)
        found += [
            {entry["name"]: entry["value"] for entry in each["env"] if entry["name"].startswith("CUDA_MPS_")}
            for each in made(under).body["spec"]["template"]["spec"]["containers"]
        ]
        assert "CUDA_MPS_" not in json.dumps(made(under.model_copy(update={"sharing": Sharing.TIME_SLICING})).body)

    assert found == [asked, {}, asked]


def test_keys_are_named_and_never_held():
    client, server = made(serving()).body["spec"]["template"]["spec"]["containers"]
    key = {"name": "LLM_KEY", "valueFrom": {"secretKeyRef": {"name": "llm", "key": "api-key"}}}
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}

    assert [entry for entry in client["env"] if "secretKeyRef" in str(entry)] == [key], "what it sends, and no more"
    assert [entry for entry in server["env"] if "secretKeyRef" in str(entry)] == [token, key]
    assert {"name": "NOTE", "value": 'a "quoted" & <odd> word'} in server["env"]
    assert {"name": "CACHE", "value": "/tmp/8080"} in server["env"]


@pytest.mark.parametrize("named", [{"name": "resnet50"}, {"name": "small", "model": "resnet50"}])
def test_requests_are_sent_to_a_built_in_model_as_to_one_of_your_own(named):
    measured = WorkloadSpec(**named, scenario=ScenarioSpec(kind="http", rate=4))
    sending = load_pods(experiment(workload=measured), Path("one-1"), KubernetesSpec(), "c0ffee", plan="{}")

    assert sending.body["spec"]["template"]["metadata"]["labels"]["gpu-sharing-harness/load"] == "true"


@pytest.mark.parametrize("minor", MINORS)
def test_the_pods_that_send_requests_have_no_gpu_and_stand_away_from_the_replicas(minor):
    spec = KubernetesSpec(load_generators=2, **FULL)
    sending = load_pods(experiment(replicas=2), Path("one-1"), spec, "c0ffee", plan='{"a": 1}')
    template = sending.body["spec"]["template"]

    schemas.validate(sending.body, minor)
    assert violations(template["spec"]) == []
    assert sending.labels["gpu-sharing-harness/experiment"] != made().labels["gpu-sharing-harness/experiment"]
    assert template["metadata"]["labels"]["gpu-sharing-harness/load"] == "true"
    assert template["metadata"]["annotations"]["prometheus.io/scrape"] == "false"
    told = {entry["name"]: entry.get("value") for entry in container(sending.body)["env"]}
    assert (told["LOAD_PLAN"], told["LOAD_SHARDS"]) == ('{"a": 1}', "2")
    assert {"REPLICA", "PORT", "REPLICA_DIR"} < set(told)
    assert "REPLICA_SPEC" not in told
    assert "resources" not in container(load_pods(experiment(), Path("a"), KubernetesSpec(), "b", plan="").body)
    assert set(template["spec"]["affinity"]) == {"nodeAffinity", "podAntiAffinity"}


def test_where_the_cluster_chooses_the_user_none_is_asked_for():
    security = made(run_as_user=None).body["spec"]["template"]["spec"]["securityContext"]

    assert set(security) == {"runAsNonRoot", "seccompProfile"}
    assert made().body["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 65534


def test_on_the_cpu_it_asks_for_nothing():
    body = made(gpus_per_replica=0).body

    assert "resources" not in container(body)
    assert "runtimeClassName" not in body["spec"]["template"]["spec"]


def test_a_replica_is_found_by_its_annotations_and_told_apart_by_its_labels():
    body = made().body
    metadata = body["spec"]["template"]["metadata"]

    assert metadata["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8000",
        "prometheus.io/path": "/metrics",
    }
    assert metadata["labels"] == body["metadata"]["labels"]
    assert metadata["labels"]["gpu-sharing-harness/campaign"] == "c0ffee"
    assert body["spec"]["selector"]["matchLabels"].items() <= metadata["labels"].items()


def test_the_settings_are_those_of_a_local_replica():
    of = experiment(replicas=1, workload={"precision": "fp16", "batch_size": 4}, text='a "quoted" & <odd> word')
    environment = {entry["name"]: entry.get("value") for entry in container(made(of).body)["env"]}

    assert ReplicaSpec.model_validate_json(environment["REPLICA_SPEC"]).workload == of.workload
    assert environment["REPLICA_DIR"] == "/var/run/replica"
    assert "RUN_SECONDS" not in environment


def test_a_job_is_bounded_in_every_way():
    body = made(kind="job").body
    environment = {entry["name"]: entry.get("value") for entry in container(body)["env"]}

    assert float(environment["RUN_SECONDS"]) > 20 + 0.5
    assert body["spec"]["activeDeadlineSeconds"] > float(environment["RUN_SECONDS"])
    assert body["spec"]["ttlSecondsAfterFinished"] > 0
    assert body["spec"]["backoffLimitPerIndex"] == 0


def test_names_are_valid_and_another_one_for_every_attempt():
    long = experiment(replicas=256)
    long = long.model_copy(update={"workload": long.workload.model_copy(update={"name": 41 * "x"})})
    names = [made(attempt="one-1").name, made(attempt="one-2").name, made(long).name]

    assert len(set(names)) == 3
    for name in names:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 52, "a ReplicaSet's hash and a pod's suffix still fit into 63"


def test_a_layer_is_put_before_the_command_of_the_image():
    layer = LayerSpec(prefix=["taskset", "-c", "0"], environment={"HOOK_LOG": "off"}, preload="/opt/hook.so")
    body = made(experiment(condition=ConditionSpec(name="hooked", layer=layer))).body
    own = ["python", "-m", "harness.replica"]

    assert container(body)["command"] == ["taskset", "-c", "0", "env", "LD_PRELOAD=/opt/hook.so", *own]
    assert {"name": "HOOK_LOG", "value": "off"} in container(body)["env"]
    assert "command" not in container(made().body)
    entrypoint = (ROOT / "roles/workload_image/files/Containerfile").read_text().splitlines()[-1]
    assert entrypoint == f"ENTRYPOINT {json.dumps(own)}"


@pytest.mark.parametrize("kind", ["deployment", "job"])
@pytest.mark.parametrize("changes", [{}, FULL])
def test_a_library_of_another_image_is_copied_by_an_ordinary_pods_init_container(kind, changes):
    layer = LayerSpec(preload="/opt/lib/hook.so", preload_image="registry.example/hook:1")
    body = made(experiment(condition=ConditionSpec(name="hooked", layer=layer)), kind=kind, **changes).body
    pod = body["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]

    assert init["command"] == ["cp", "/opt/lib/hook.so", "/var/run/layer/hook.so"]
    assert (init["image"], init["imagePullPolicy"]) == ("registry.example/hook:1", "IfNotPresent")
    assert container(body)["command"][:2] == ["env", "LD_PRELOAD=/var/run/layer/hook.so"]
    assert [(one["name"], one.get("readOnly", False)) for one in init["volumeMounts"]] == [("layer", False)]
    assert {"name": "layer", "mountPath": "/var/run/layer", "readOnly": True} in container(body)["volumeMounts"]
    assert init.get("resources", {}) == (OWN if changes else {}), (
        "it takes no GPU, and asks for no more than what comes after"
    )
    assert violations(pod) == []
    for minor in MINORS:
        schemas.validate(body, minor)
