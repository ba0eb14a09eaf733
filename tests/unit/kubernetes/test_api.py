"""What is said when the API server is not there, does not know us, refuses or is busy; and how long it is asked."""

import json
import random
import threading
import time

import pytest
from urllib3 import HTTPResponse

from harness.backends.kubernetes import api as kubernetes_api
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.watch import Watcher
from harness.errors import BackendError, ClusterError
from harness.metrics.prometheus.client import PrometheusServer
from harness.spec import KubernetesSpec
from harness.traffic.endpoint import Endpoint, Response
from tests.support.fake_cluster import Review
from tests.support.faulty_proxy import FaultyProxy
from tests.support.processes import eventually

PODS = "/api/v1/namespaces/inference/pods"
MAPS = "/api/v1/namespaces/inference/configmaps"


@pytest.fixture
def spec(cluster, tmp_path):
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    return lambda **changes: KubernetesSpec(**{"kubeconfig": str(kubeconfig), "api_timeout_s": 1.0} | changes)


@pytest.fixture
def proxy(cluster, tmp_path):
    with FaultyProxy(cluster.url, cluster.token, share=1.0, stall_s=1.0) as faulty:
        faulty.kubeconfig = faulty.write_kubeconfig(tmp_path / "faulty")
        yield faulty


def said(action):
    with pytest.raises(ClusterError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kubeconfig": "none"}, "There is no kubeconfig at "),
        ({"context": "prod"}, "has no context 'prod'; it has fake."),
        ({"kubeconfig": "half"}, "cannot be"),
    ],
)
def test_a_kubeconfig_that_is_of_no_use(spec, tmp_path, changes, words):
    (tmp_path / "half").write_text('{"apiVersion": "v1", "clusters": [')
    place = {key: str(tmp_path / name) for key, name in changes.items() if key == "kubeconfig"}

    error = said(lambda: KubernetesApi(spec(**changes | place)))

    assert words in error.message
    assert error.advice


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("no-such-login", [], "no-such-login"),
        ("/bin/sh", ["-c", "echo not logged in >&2; exit 3"], "process returned 3. not logged in"),
        ("/bin/sh", ["-c", "echo nothing"], "failed to decode process output"),
    ],
)
def test_a_login_program_that_fails_is_named_and_nobody_goes_on_without_credentials(
    spec, tmp_path, capfd, command, arguments, words
):
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": arguments}
    config = json.loads((tmp_path / "kubeconfig").read_text())
    config["users"][0]["user"] = {"exec": login | {"interactiveMode": "Never"}}
    (tmp_path / "login").write_text(json.dumps(config))

    error = said(lambda: KubernetesApi(spec(kubeconfig=str(tmp_path / "login"))))

    assert f"The login program of the kubeconfig {tmp_path / 'login'} gives no credentials: " in error.message
    assert words in error.message
    assert "kubectl get pods" in error.advice
    assert "ERROR:root" not in capfd.readouterr().err


def test_nobody_listens(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "FIRST_CONTACT_S", 0.3)
    config = json.loads((tmp_path / "kubeconfig").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "nobody").write_text(json.dumps(config))
    began_s = time.monotonic()

    error = said(lambda: KubernetesApi(spec(kubeconfig=str(tmp_path / "nobody"))).list(PODS))

    assert "No API server answers at http://127.0.0.1:9" in error.message
    assert time.monotonic() - began_s < 60, "the first contact is not waited for as long as an outage"


def test_an_expired_token(spec, cluster):
    api = KubernetesApi(spec())
    cluster.token = "renewed"

    error = said(lambda: api.list(PODS))

    assert (error.status, "log in again" in error.advice) == (401, True)


def test_a_token_that_was_renewed_in_the_kubeconfig_is_taken(spec, cluster, tmp_path):
    api = KubernetesApi(spec())
    api.list(PODS)
    cluster.token = "renewed"
    cluster.write_kubeconfig(tmp_path / "kubeconfig")

    assert api.list(PODS) == []


def test_a_token_that_was_renewed_is_taken_by_watches_downloads_and_queries_of_prometheus_too(spec, cluster, tmp_path):
    api = KubernetesApi(spec())
    answer = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "7"]}]}}
    routes = {
        "/latencies": lambda: Response(200, b"all of it"),
        "/api/v1/query": lambda: Response(200, json.dumps(answer).encode(), "application/json"),
    }
    pod = Endpoint("127.0.0.1", 0, routes)
    api.apply(f"{PODS}/a", {"metadata": {"name": "a"}, "spec": {"containers": [{"image": "x"}]}})
    api.patch(f"{PODS}/a/status", {"status": {"podIP": "127.0.0.1"}})
    other = api.until(threading.Event())
    watched = Watcher(api, PODS)
    watched.start()
    place = f"{api.url}{PODS}/a:{pod.port}/proxy"

    def headers():
        return api.connection.authorization()  # of the connection of the moment

    prometheus = PrometheusServer(place, headers=headers, renew=api.renew)

    for number, ask in enumerate(
        [
            lambda: api.download(f"{PODS}/a:{pod.port}/proxy/latencies", tmp_path / "fetched", patience_s=20),
            lambda: other.download(f"{PODS}/a:{pod.port}/proxy/latencies", tmp_path / "fetched", patience_s=20),
            lambda: prometheus.query("seven"),
        ]
    ):
        cluster.token = f"renewed-{number}"
        cluster.write_kubeconfig(tmp_path / "kubeconfig")
        assert ask()

    cluster.token = "renewed at last"
    cluster.write_kubeconfig(tmp_path / "kubeconfig")
    accepted = []
    cluster.before = lambda verb, _target: accepted.append(verb)
    assert eventually(lambda: "watch" in accepted), "the next watch, when this one has had its seconds"
    watched.stop()
    prometheus.close()
    pod.close()


def test_a_missing_right_is_named_with_verb_resource_and_place(spec, cluster):
    cluster.denied.add(Review("list", "pods"))

    error = said(lambda: KubernetesApi(spec()).list(PODS))

    assert "may not list pods in namespace inference" in error.message
    assert "access.yaml.j2" in error.advice
    assert error.status == 403


def test_what_is_not_there(spec):
    api = KubernetesApi(spec())

    assert api.find(f"{PODS}/none") is None
    assert said(lambda: api.get(f"{PODS}/none")).status == 404
    assert api.delete(f"{PODS}/none") is False


def test_a_login_page_is_no_api(spec, monkeypatch):
    api = KubernetesApi(spec())
    monkeypatch.setattr(api, "exchange", lambda *_, **__: HTTPResponse(b"<html>log in</html>"))

    assert "not JSON: '<html>log in</html>'" in said(lambda: api.get("/version")).message


def a_map(**metadata):
    metadata = {"name": "a", "labels": {"campaign": "ours"}} | metadata
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value"}}


def test_what_is_made_waits_for_an_object_of_its_name_that_is_going(spec):
    api = KubernetesApi(spec())
    before = api.make(f"{MAPS}/a", a_map(finalizers=["example/held"]))
    api.delete(f"{MAPS}/a")
    threading.Timer(0.5, lambda: api.patch(f"{MAPS}/a", {"metadata": {"finalizers": None}})).start()

    made = api.make(f"{MAPS}/a", a_map())

    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert api.get(f"{MAPS}/a")["metadata"]["uid"] == made["metadata"]["uid"]


def test_an_object_that_does_not_go_is_said_with_what_holds_it(spec, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "GOING_S", 0.3)
    api = KubernetesApi(spec())
    api.make(f"{MAPS}/a", a_map(finalizers=["example/held"]))
    api.delete(f"{MAPS}/a")

    error = said(lambda: api.make(f"{MAPS}/a", a_map()))

    assert error.message == "The ConfigMap a of before is still being deleted after 0.3 s."
    assert "(example/held)" in error.advice


def test_waiting_for_an_object_to_go_ends_when_it_is_aborted(spec):
    api, abort = KubernetesApi(spec()), threading.Event()
    api.make(f"{MAPS}/a", a_map(finalizers=["example/held"]))
    api.delete(f"{MAPS}/a")
    threading.Timer(0.3, abort.set).start()

    with pytest.raises(BackendError, match="stopped while the ConfigMap a of before"):
        api.until(abort).make(f"{MAPS}/a", a_map())


def test_what_was_made_though_its_answer_was_lost_is_taken(spec, proxy):
    api = KubernetesApi(spec(kubeconfig=str(proxy.kubeconfig)))
    proxy.faults, proxy.only = 1, ("reset after",)

    made = api.make(f"{MAPS}/a", a_map())

    assert proxy.injected == {"reset after": 1}
    assert (made["metadata"]["generation"], made["data"]) == (1, {"key": "value"})


def test_an_object_of_somebody_else_is_left_as_it_is(spec):
    api = KubernetesApi(spec())
    theirs = api.make(f"{MAPS}/a", a_map(labels={"campaign": "theirs"}))

    error = said(lambda: api.make(f"{MAPS}/a", a_map()))

    assert error.message == "Another user's ConfigMap a is in namespace inference."
    assert api.get(f"{MAPS}/a") == theirs


def test_a_file_arrives_whole_however_often_its_connection_breaks(spec, proxy, tmp_path):
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "log").write_bytes(data)
    routes = {"/latencies": lambda: Response(200, b"", "application/octet-stream", tmp_path / "log")}
    replica = Endpoint("127.0.0.1", 0, routes)
    direct = KubernetesApi(spec())
    direct.apply(f"{PODS}/a", {"metadata": {"name": "a"}, "spec": {"containers": [{"image": "x"}]}})
    direct.patch(f"{PODS}/a/status", {"status": {"podIP": "127.0.0.1"}})
    api = KubernetesApi(spec(kubeconfig=str(proxy.kubeconfig), api_timeout_s=0.3))
    api.longest_pause_s = 0.02
    proxy.faults, proxy.only = 12, ("torn", "reset before")

    fetched = api.download(f"{PODS}/a:{replica.port}/proxy/latencies", tmp_path / "fetched", patience_s=200)

    replica.close()
    assert proxy.injected["torn"] > 2
    assert fetched == len(data)
    assert (tmp_path / "fetched").read_bytes() == data


def test_a_missing_right_costs_no_time_and_a_server_that_has_just_started_may_refuse(spec, proxy, cluster):
    api = KubernetesApi(spec(kubeconfig=str(proxy.kubeconfig), outage_s=600))
    api.list(PODS)
    cluster.denied.add(Review("list", "pods"))
    began_s = time.monotonic()
    said(lambda: api.list(PODS))
    assert time.monotonic() - began_s < 60

    proxy.faults = 1
    threading.Timer(0.3, cluster.denied.clear).start()
    assert api.list(PODS) == []


def test_an_outage_is_waited_for_as_long_as_the_campaign_says(spec, proxy):
    api = KubernetesApi(spec(kubeconfig=str(proxy.kubeconfig), outage_s=1.0))
    api.list(PODS)
    proxy.away.set()
    began_s = time.monotonic()

    error = said(lambda: api.list(PODS))

    assert 0.3 < time.monotonic() - began_s < 60
    assert "No API server answers" in error.message


def test_waiting_for_a_server_ends_when_it_is_aborted(spec, proxy):
    abort = threading.Event()
    api = KubernetesApi(spec(kubeconfig=str(proxy.kubeconfig), outage_s=600))
    api.list(PODS)
    proxy.away.set()
    threading.Timer(0.3, abort.set).start()
    began_s = time.monotonic()

    with pytest.raises(BackendError, match="stopped while the API server did not answer"):
        api.until(abort).list(PODS)

    assert time.monotonic() - began_s < 60


def test_credentials_are_in_no_repr(spec, cluster):
    api = KubernetesApi(spec())

    assert cluster.token not in repr(api.connection)
    assert api.connection.authorization() == {"authorization": f"Bearer {cluster.token}"}
