"""The picture that a watcher keeps is the server's, whatever happens to its watches."""

import threading

import pytest

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.watch import Watcher
from harness.spec import KubernetesSpec
from tests.support.faulty_proxy import FaultyProxy
from tests.support.processes import wait_for

PODS = "/api/v1/namespaces/inference/pods"


@pytest.fixture
def api(cluster, tmp_path):
    return KubernetesApi(
        KubernetesSpec(kubeconfig=str(cluster.write_kubeconfig(tmp_path / "direct")), api_timeout_s=30)
    )


@pytest.fixture
def proxy(cluster):
    with FaultyProxy(cluster.url, cluster.token, share=1.0, stall_s=0.7) as faulty:
        yield faulty


@pytest.fixture
def watch(proxy, tmp_path):
    seen = []
    spec = KubernetesSpec(kubeconfig=str(proxy.write_kubeconfig(tmp_path / "faulty")), api_timeout_s=0.3)
    watcher = Watcher(
        KubernetesApi(spec), PODS, labels="wanted=yes", listener=lambda kind, one: seen.append((kind, name(one)))
    )
    watcher.seen = seen
    yield watcher
    watcher.stop()


def name(one):
    return one["metadata"]["name"]


def pod(title, wanted="yes"):
    return {"metadata": {"name": title, "labels": {"wanted": wanted}}, "spec": {"containers": [{"image": "x"}]}}


def test_what_is_there_comes_and_goes(api, watch):
    api.apply(f"{PODS}/a", pod("a"))
    watch.start()
    api.apply(f"{PODS}/b", pod("b"))
    api.apply(f"{PODS}/other", pod("other", wanted="no"))
    api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    api.delete(f"{PODS}/b")
    wait_for(lambda: ("DELETED", "b") in watch.seen)

    assert watch.seen == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert [one["status"]["phase"] for one in watch.objects] == ["Running"]


def test_what_happened_while_the_server_was_away_and_forgot_is_told(api, watch, proxy, cluster):
    for title in ("kept", "gone", "changed"):
        api.apply(f"{PODS}/{title}", pod(title))
    watch.start()
    proxy.away.set()
    wait_for(lambda: watch.away_s > 0)
    api.delete(f"{PODS}/gone")
    api.apply(f"{PODS}/new", pod("new"))
    api.patch(f"{PODS}/changed/status", {"status": {"phase": "Running"}})
    cluster.store.expire()
    watch.seen.clear()
    proxy.away.clear()
    wait_for(lambda: len(watch.seen) == 3)

    assert sorted(watch.seen) == [("ADDED", "new"), ("DELETED", "gone"), ("MODIFIED", "changed")]
    assert [name(one) for one in watch.objects] == ["changed", "kept", "new"]


def test_it_ends_at_once_when_it_is_told_to(api, watch):
    del api
    watch.start()
    wait_for(lambda: watch._answer is not None)
    watch.stop()

    wait_for(lambda: not [one for one in threading.enumerate() if one.name == f"watch {PODS}"])
