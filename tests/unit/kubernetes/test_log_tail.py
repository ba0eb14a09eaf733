"""Logs of pods that are followed while they are written: how often they are asked for, and what becomes of a failure."""

import itertools
import time

import pytest

from harness.backends.kubernetes import collect
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.pods import PodReplica
from harness.results import layout
from harness.spec import KubernetesSpec
from harness.traffic.endpoint import Endpoint, Response
from tests.support.fake_cluster import FakeCluster
from tests.support.processes import eventually

PODS = "/api/v1/namespaces/inference/pods"


class Judge:
    """Would look after every row; knows enough after some."""

    def __init__(self, known_after=10**6):
        self.known_after, self.asked = known_after, []

    def due(self, rows):
        return rows > max(self.asked, default=0)

    def __call__(self, rows):
        self.asked.append(rows)
        return rows >= self.known_after


class Following:
    """Logs of pods behind a fake API server, followed for a judge.

    Attributes:
        asked_s: when a log was asked for.
    """

    def __init__(self, cluster, folder, log, *, replicas, judge, dead):
        self.judge, self.notices, self.asked_s = judge or Judge(), [], []
        self.api = KubernetesApi(KubernetesSpec(kubeconfig=str(cluster.write_kubeconfig(folder / "kubeconfig"))))
        routes = {"/latencies": lambda: Response(200, b"", "application/octet-stream", log)}
        self.server = Endpoint("127.0.0.1", 0, routes)
        for index in range(replicas):
            self.make(index)
        cluster.before = lambda _verb, target: "proxy" in target.subresource and self.asked_s.append(time.monotonic())
        followed_ones = [self.replica(index) for index in range(replicas)]
        self.one = collect.PodLogTail(self.api, followed_ones, folder, self.judge, self.notices.append, lambda: dead)
        self._rows = itertools.count(1)

    def make(self, index):
        pod = {"metadata": {"name": f"a-{index}"}, "spec": {"containers": [{"image": "x"}]}}
        self.api.apply(f"{PODS}/a-{index}", pod)
        self.api.patch(f"{PODS}/a-{index}/status", {"status": {"podIP": "127.0.0.1"}})

    def replica(self, index):
        name, port = f"a-{index}", self.server.port
        return PodReplica(index, name, f"u{index}", "n", "inference", port)

    def until(self, condition):
        """Ask after one row after another until enough is known or something is so."""
        assert eventually(lambda: self.one(next(self._rows)) or condition())

    def close(self):
        self.one.close()
        self.server.close()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first")
    return path


@pytest.fixture
def follow(tmp_path, log, monkeypatch):
    monkeypatch.setattr(collect, "PACE_S", 0.01)
    made = []
    with FakeCluster() as cluster:

        def following(replicas=2, judge=None, dead=()):
            made.append(Following(cluster, tmp_path, log, replicas=replicas, judge=judge, dead=dead))
            return made[-1]

        yield following
        for one in made:
            one.close()


def test_a_round_asks_each_replica_once_for_what_is_new_and_counts_for_the_row_at_its_beginning(follow, tmp_path, log):
    pods = follow(replicas=3)
    assert not pods.one(7)
    assert eventually(lambda: pods.one(8) or pods.judge.asked)
    assert (pods.judge.asked, len(pods.asked_s)) == ([7], 3)

    log.write_bytes(b"first and second")
    pods.one(9)
    assert eventually(lambda: pods.one(10) or len(pods.judge.asked) == 2)

    assert pods.judge.asked == [7, 9]
    here = [layout.replica_folder(tmp_path, index) / layout.RAW_LATENCIES for index in range(3)]
    assert [one.read_bytes() for one in here] == [b"first and second"] * 3


@pytest.mark.parametrize("replicas", [1, 40])
def test_requests_come_no_faster_from_forty_replicas_than_from_one(follow, replicas):
    pods = follow(replicas)
    pods.until(lambda: len(pods.asked_s) >= 40)

    assert min(later - before for before, later in itertools.pairwise(pods.asked_s)) >= collect.PACE_S


def test_nothing_is_asked_while_the_judge_would_not_look(follow):
    pods = follow()
    pods.judge.asked = [5]

    assert [pods.one(rows) for rows in range(6)] == [False] * 6
    assert pods.asked_s == []


def test_what_cannot_be_fetched_is_said_once_and_fetched_with_a_later_row(follow):
    pods = follow(judge=Judge(known_after=1))
    pods.api.delete(f"{PODS}/a-1")
    pods.until(lambda: len(pods.asked_s) >= 6)
    assert pods.judge.asked == []

    pods.make(1)
    pods.until(lambda: False)
    (said,) = pods.notices
    assert said.startswith("Whether enough is known cannot be judged now: ")
    assert "a-1" in said


def test_of_a_replica_that_died_counts_what_was_fetched(follow):
    pods = follow(dead=[1])
    pods.api.delete(f"{PODS}/a-1")
    pods.until(lambda: pods.judge.asked)

    assert pods.notices == []


@pytest.fixture
def followed_log(follow, tmp_path, log):
    """A log that was followed to its 5th byte, and has 16 now; its pod, and where it goes."""
    pods = follow(replicas=1)
    pods.until(lambda: pods.judge.asked)
    pods.one.close()
    target = layout.replica_folder(tmp_path, 0) / layout.RAW_LATENCIES
    assert not target.exists(), "a part must not look like a whole one"
    log.write_bytes(b"first and second")
    return pods, target


def collected(pods, folder, monkeypatch, restarted=()):
    """What the results fetch of the log; how many bytes were here before."""
    before = []
    download = KubernetesApi.download

    def noting(api, path, target, **how):
        before.append(target.stat().st_size if target.exists() else 0)
        return download(api, path, target, **how)

    monkeypatch.setattr(KubernetesApi, "download", noting)
    collect.results(pods.api, [pods.replica(0)], folder, ["latencies"], restarted)
    return before


def test_of_a_log_that_was_followed_only_the_rest_is_fetched_in_the_end(followed_log, tmp_path, monkeypatch):
    pods, target = followed_log

    assert collected(pods, tmp_path, monkeypatch) == [len(b"first")]
    assert target.read_bytes() == b"first and second"
    assert not collect.part_of(target).exists()


def test_of_a_replica_that_began_anew_the_whole_log_is_fetched(followed_log, tmp_path, log, monkeypatch):
    pods, target = followed_log
    log.write_bytes(b"another log")

    assert collected(pods, tmp_path, monkeypatch, restarted={("a-0", "replica")}) == [0]
    assert target.read_bytes() == b"another log"


def test_no_part_of_a_log_is_left(followed_log):
    pods, target = followed_log
    pods.one.discard()

    assert list(target.parent.iterdir()) == []
