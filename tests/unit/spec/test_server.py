"""What a campaign file may say of a server of the user's own."""

import re
from pathlib import Path

import pytest
import yaml

from harness.campaign.plan import expand
from harness.errors import CampaignFileError, UsageError
from harness.metrics.catalogue import CATALOGUE, REPLICA_SOURCES
from harness.replica.engine.workload import FOLLOW_S
from harness.spec import Sharing, WorkloadSpec
from harness.spec.load import parse_campaign
from harness.spec.workload import SERVER as SERVER_TARGET
from harness.spec.workload import STREAMING_SERVER

SERVER = {"command": ["serve", "--port", "{port}"]}


RUNNING = {"url": ["http://localhost:8000", "http://[::1]:8001/"]}
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
TRACE = {"trace": {"file": "t.jsonl"}}
IMAGE = {"image": "registry.example/engine:1", "args": ["--port", "{port}"]}
OIP = SERVER | {"protocol": "oip", "model": "sum", "tensors": [TENSOR]}


def parsed(server, **more):
    cluster = {"backend": "kubernetes", "kubernetes": {}} if "image" in server else {}
    text = {"name": "mine", "workloads": [{"name": "llm", "server": server} | more], "replicas": [1, 2]}
    return parse_campaign(yaml.safe_dump(text | cluster), origin="c.yaml")


def test_a_command_is_enough():
    spec = parsed(SERVER)
    (workload,) = spec.workloads
    assert workload.own
    assert not workload.open_loop
    assert workload.server.ready.tcp
    assert "client_ttft_p99" not in expand(spec)[0].metrics
    assert "failed_requests_per_second" in expand(spec)[0].metrics


def test_a_stream_has_the_metrics_of_tokens():
    metrics = expand(parsed(SERVER | {"protocol": "openai-chat"}))[0].metrics
    assert {"client_ttft_p99", "client_itl_p99", "client_tpot_p50", "output_tokens_per_second"} <= set(metrics)
    whole = expand(parsed(SERVER | {"protocol": "openai-chat", "stream": False}))[0].metrics
    assert "client_ttft_p99" not in whole


def test_tensors_are_asked_once_the_server_says_that_it_is_ready():
    (workload,) = parsed(OIP).workloads
    assert workload.server.ready.path == "/v2/health/ready"
    assert not workload.server.streams
    assert parsed(OIP | {"ready": {"tcp": True}}).workloads[0].server.ready.path is None
    assert WorkloadSpec.model_validate(workload.model_dump(mode="json")) == workload


def test_an_image_is_told_its_port_or_has_one():
    (told,), (has,) = (parsed(server).workloads for server in (IMAGE, {"image": "x/y:1", "port": 11434}))
    assert (told.server.pod_port, has.server.pod_port) == (8080, 11434)
    assert told.own
    assert parsed(OIP | IMAGE).workloads[0].server.ready.path == "/v2/health/ready"


def test_a_rate_is_an_open_loop_that_stress_can_raise():
    (workload,) = parsed(SERVER | {"rate": 4}).workloads
    assert workload.open_loop
    assert workload.at_rate(9).server.rate == 9
    image = (
        SERVER
        | {"protocol": "openai-chat"}
        | TRACE
        | {"requests": {"tokenizer": "folder", "image": {"width": 8, "height": 8}}}
    )
    for asked in (SERVER | TRACE, image, SERVER | {"rate": 4, "ramp_to": 8}):
        (workload,) = parsed(asked).workloads
        assert workload.open_loop
        with pytest.raises(ValueError, match="has no rate"):
            workload.at_rate(9)
        stress = yaml.safe_dump(
            {
                "name": "mine",
                "workloads": [{"name": "llm", "server": asked}],
                "replicas": [1],
                "stress": {"load": "rate"},
            }
        )
        with pytest.raises(CampaignFileError, match="llm has no rate to raise"):
            parse_campaign(stress, origin="c.yaml")
    with pytest.raises(ValueError, match="has no rate"):
        WorkloadSpec.model_validate({"name": "llm", "server": SERVER}).at_rate(9)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({}, "1 request in flight"),
        ({"concurrency": 8}, "8 requests in flight"),
        ({"rate": 4}, "poisson arrivals, 4 requests per second"),
        (
            {"rate": 4, "arrivals": "gamma", "burstiness": 0.5},
            "gamma arrivals of burstiness 0.5, 4 requests per second",
        ),
        ({"rate": 4, "ramp_to": 8}, "poisson arrivals, 4 requests per second, in the recording evenly to 8"),
        ({"trace": {"file": "t.jsonl"}}, "the trace t.jsonl, 1 times as fast"),
    ],
)
def test_the_load_is_said_in_words(load, words):
    assert parsed(SERVER | load).workloads[0].server.load_in_words() == words


def test_a_replica_has_the_time_its_server_needs_to_end():
    (experiment, _) = expand(parsed(SERVER | {"stop_timeout_s": 100}))
    assert experiment.drain_timeout_s > 100
    (experiment, _) = expand(parsed(SERVER | {"stop_timeout_s": 1}))
    assert experiment.drain_timeout_s > FOLLOW_S + 1, "the last answers need their time, too"
    patient = experiment.model_copy(update={"timing": experiment.timing.model_copy(update={"drain_timeout_s": 99.0})})
    assert patient.drain_timeout_s == 99


@pytest.mark.parametrize(
    ("server", "more", "message"),
    [
        ({"command": ["serve"]}, {}, "the server does not know its port"),
        ({"command": []}, {}, "give either `command`"),
        (SERVER | RUNNING, {}, "give either `command`"),
        (IMAGE | RUNNING, {}, "give either `command` or `image`"),
        (SERVER | {"args": ["x"]}, {}, "`args` is of a container: give its `image`"),
        (SERVER | {"secret_env": {"A": "b/c"}}, {}, "`secret_env` is of a container"),
        (IMAGE | {"image": "x/Y:1"}, {}, "'x/Y:1' is not an image reference"),
        (IMAGE | {"args": []}, {}, "the server does not know its port"),
        (IMAGE | {"args": ["{port}", "{replica}"]}, {}, "{replica} is not known in a container"),
        (IMAGE | {"args": ["{port}", "{replicas}"]}, {}, "{replicas} is not known in a container"),
        (IMAGE | {"port": 8000}, {}, "port 8000 of a pod has the /metrics of the replica"),
        (IMAGE | {"env": {"HF_TOKEN": "s3cr3t"}}, {}, "HF_TOKEN holds a key"),
        (IMAGE | {"api_key_env": "KEY"}, {}, "`api_key_env` names what no pod has"),
        (IMAGE | {"body": 100_000 * "x"}, {}, "longer than a pod's variable"),
        (IMAGE | {"reserve": {"memory": "much"}}, {}, "must match the pattern"),
        (RUNNING | {"port": 8000}, {}, "`port` has no effect on a server that runs already"),
        (RUNNING | {"ready": {"path": "/"}}, {}, "`ready` has no effect on a server that runs already"),
        (RUNNING, {"device": "cuda"}, "`device` has no effect on a server"),
        ({"url": ["http://a:1"]}, {}, "2 replicas of llm need as many servers, and `url` names 1"),
        ({"url": ["http://a:1", "http://a:1/"]}, {}, "names an address twice"),
        ({"url": ["http://a:1", "ftp://b:1"]}, {}, "address 2 of `url` is not http(s)://host:port"),
        ({"url": ["http://a:1/v1", "http://b"]}, {}, "what follows goes into `path`"),
        ({"url": "a:1"}, {}, "address 1 of `url` is not http(s)://host:port"),
        (SERVER | {"headers": {"X-API-Key": "s3cr3t"}}, {}, "X-API-Key holds a key"),
        (SERVER | {"headers": {"authorization": "Bearer s3cr3t"}}, {}, "in `api_key_env`"),
        (SERVER | {"path": "/infer?x=1&access_token=s3cr3t"}, {}, "access_token holds a key"),
        ({"url": "http://me:s3cr3t@a:1"}, {}, "`url` holds a name or a password"),
        (SERVER | {"rate": 1, "concurrency": 2}, {}, "keep one of them"),
        (SERVER | TRACE | {"rate": 1}, {}, "keep one of them"),
        (SERVER | TRACE | {"concurrency": 1}, {}, "keep one of them"),
        (SERVER | TRACE | {"requests": {"file": "x.jsonl"}}, {}, "leave lengths and `file` out of `requests`"),
        (SERVER | {"requests": {"image": {"width": 8, "height": 8}}}, {}, "`requests.image` goes with protocol"),
        (OIP | {"requests": {"audio": {"seconds": 1}}}, {}, "`requests.audio` goes with protocol openai-chat, or"),
        (SERVER | {"body": {"x": ["a {audio}"]}}, {}, "`body` holds {audio}, and nothing says what that is"),
        (SERVER | {"requests": {"image": {"width": 4097, "height": 8}}}, {}, "at most 4096"),
        (SERVER | {"requests": {"audio": {"seconds": 1e9}}}, {}, "at most 120"),
        (
            SERVER | {"protocol": "openai-chat", "requests": {"file": "x.jsonl", "audio": {"seconds": 1}}},
            {},
            "`requests.file` says what is asked: leave `audio` out",
        ),
        (SERVER | {"trace": {"file": "t.jsonl", "factor": 0}}, {}, "greater than 0"),
        (OIP | TRACE, {}, "use no oip protocol"),
        (SERVER | {"ramp_to": 2}, {}, "`ramp_to` has no effect without `rate`"),
        (SERVER | {"arrivals": "poisson"}, {}, "no effect without `rate`"),
        (SERVER | {"rate": 1, "arrivals": "gamma"}, {}, "arrivals gamma have a `burstiness`"),
        (SERVER | {"rate": 1, "burstiness": 2}, {}, "no others have one"),
        (SERVER | {"ready": {"path": "/health", "tcp": True}}, {}, "give one of `path`, `log`"),
        (SERVER | {"ready": {"log": "("}}, {}, "is not a regular expression"),
        (SERVER | {"model": "m"}, {}, "`model` has no effect with http"),
        (SERVER | {"extra_body": {"a": 1}}, {}, "`extra_body` has no effect with http"),
        (SERVER | {"tensors": [TENSOR]}, {}, "`tensors` has no effect with http; it belongs to oip and oip-grpc"),
        (SERVER | {"protocol": "oip", "model": "m"}, {}, "protocol oip needs `tensors`"),
        (SERVER | {"protocol": "oip", "tensors": [TENSOR]}, {}, "oip needs `model`"),
        (OIP | {"tensors": [TENSOR | {"data": [1]}]}, {}, "has 1 elements in `data`, and its shape takes 4"),
        (OIP | {"tensors": [TENSOR | {"shape": [9_999, 9_999]}]}, {}, "are the most of one request"),
        (OIP | {"tensors": [TENSOR | {"datatype": "float32"}]}, {}, "datatype"),
        (OIP | {"requests": {"file": "x.jsonl"}}, {}, "which protocol oip does not send"),
        (OIP | {"stream": False}, {}, "`stream` has no effect with oip"),
        (OIP | {"protocol": "oip-grpc", "path": "/x"}, {}, "`path` has no effect with oip-grpc"),
        (SERVER | {"protocol": "oip-grpc", "model": "sum"}, {}, "protocol oip-grpc needs `tensors`"),
        (OIP | {"success": {"contains": "x"}}, {}, "`success` has no effect with oip; it belongs to http"),
        (SERVER | {"protocol": "openai-chat", "body": "x"}, {}, "`body` has no effect with openai-chat"),
        (SERVER | {"requests": {"input_tokens": {"mean": 5, "max": 4}}}, {}, "must lie between"),
        (SERVER | {"redy": {}}, {}, "did you mean `ready`"),
        (SERVER, {"factory": "a:b"}, "leave `model` and `factory` out"),
        (SERVER, {"batch_size": 4}, "`batch_size` has no effect on a server"),
        (SERVER, {"scenario": {"kind": "offline"}}, "`scenario` has no effect on a server"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(server, more, message):
    with pytest.raises(CampaignFileError) as caught:
        parsed(server, **more)
    assert message in caught.value.message
    assert "c.yaml:" in caught.value.message
    assert "s3cr3t" not in str(caught.value)


def test_a_ramp_is_recorded_to_its_end():
    text = {"name": "mine", "replicas": [1], "timing": {"stop_when_known": {}}}
    steady, ramp = (
        yaml.safe_dump(text | {"workloads": [{"name": "llm", "server": SERVER | asked}]})
        for asked in ({"rate": 4}, {"rate": 4, "ramp_to": 8})
    )
    parse_campaign(steady, origin="c.yaml")
    with pytest.raises(CampaignFileError, match="needs a rate that stays, and `ramp_to` of llm"):
        parse_campaign(ramp, origin="c.yaml")


def test_servers_that_run_already_share_as_they_do():
    spec = parsed(RUNNING)
    assert spec.sharing == [Sharing.AS_FOUND]
    assert [each.experiment_id for each in expand(spec)] == ["llm_r1_as-found_rep1", "llm_r2_as-found_rep1"]
    (workload,) = spec.workloads
    assert (workload.server.url, workload.server.elsewhere) == (RUNNING["url"], False)
    assert WorkloadSpec.model_validate(workload.model_dump(mode="json")) == workload
    oip = parsed(OIP | {"command": []} | RUNNING).workloads[0]
    assert WorkloadSpec.model_validate(oip.model_dump(mode="json")) == oip


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([SERVER], "sharing as-found is of servers that run already, and llm0 is none"),
        ([{"url": ["http://a:1"]}, SERVER], "sharing as-found is of servers that run already, and llm1 is none"),
    ],
)
def test_what_is_started_is_never_as_found(servers, message):
    workloads = [{"name": f"llm{number}", "server": server} for number, server in enumerate(servers)]
    text = yaml.safe_dump({"name": "mine", "sharing": ["as-found"], "workloads": workloads, "replicas": [1]})
    with pytest.raises(CampaignFileError, match=message):
        parse_campaign(text, origin="c.yaml")


def test_of_a_server_that_runs_already_only_what_can_be_seen_is_recorded():
    here, there = parsed(RUNNING), parsed({"url": ["http://a", "https://b"]})
    assert not {"cpu_usage", "memory_usage"} & set(expand(here)[0].metrics)
    assert {"gpu_power", "throughput"} <= set(expand(here)[0].metrics)
    assert {CATALOGUE[name].source for name in expand(there)[0].metrics} <= REPLICA_SOURCES
    assert {"throughput", "latency_p99"} <= set(expand(there)[0].metrics)
    with pytest.raises(UsageError, match="gpu_power cannot be measured of llm"):
        expand(there.model_copy(update={"metrics": ["throughput", "gpu_power"]}))


@pytest.mark.parametrize(
    ("neighbour", "campaign", "why"),
    [
        ({"workload": {"name": "llm", "server": RUNNING}}, {}, "needs a `command`: no `url`"),
        (
            {"workload": {"name": "llm", "server": SERVER}},
            {"backend": "kubernetes", "kubernetes": {}},
            "on this machine",
        ),
        ({"workload": {"name": "whisper"}, "slo": {"ttft_p99_ms": 5}}, {}, "answers of whisper are no streams"),
        ({"workload": {"name": "whisper"}, "slo": {"latency_p99_ms": 5}}, {}, "give the campaign's `slo`"),
    ],
)
def test_a_neighbour_that_cannot_be_one_is_refused(neighbour, campaign, why):
    beside = [{"name": "b", "neighbours": [neighbour]}]
    text = {"name": "mine", "workloads": [{"name": "resnet50"}], "replicas": [1], "conditions": beside, **campaign}
    with pytest.raises(CampaignFileError, match=why):
        parse_campaign(yaml.safe_dump(text), origin="c.yaml")


PAGE = (Path(__file__).parents[3] / "docs" / "servers.md").read_text()


def test_the_page_names_the_metrics_and_only_those():
    told = {name.removesuffix("*") for name in re.findall(r"`(client_\w+\*?|\w+_per_second)`", PAGE)}
    assert all(any(name.startswith(each) for name in CATALOGUE) for each in told)
    of_servers = {
        name for name, metric in CATALOGUE.items() if {SERVER_TARGET, STREAMING_SERVER} & set(metric.workloads)
    }
    assert all(any(name.startswith(each) for each in told) for name in of_servers)


SLO = {"name": "mine", "replicas": [1], "slo": {"ttft_p99_ms": 200, "error_rate": 0.001}}
STREAM = {"name": "llm", "server": SERVER | {"protocol": "openai-chat"}}


def test_an_objective_goes_with_every_experiment():
    (experiment,) = expand(parse_campaign(yaml.safe_dump(SLO | {"workloads": [STREAM]}), origin="c.yaml"))
    assert experiment.slo.ttft_p99_ms == 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slo": {}}, "needs a limit"),
        ({"slo": {"error_rate": 2}}, "less than 1"),
        ({"workloads": [STREAM, {"name": "resnet50"}]}, "limits times of tokens, and answers of resnet50 are no"),
        ({"workloads": [{"name": "llm", "server": SERVER}]}, "answers of llm are no streams"),
    ],
)
def test_an_objective_that_cannot_be_judged_is_refused(changes, message):
    with pytest.raises(CampaignFileError, match=message):
        parse_campaign(yaml.safe_dump(SLO | {"workloads": [STREAM]} | changes), origin="c.yaml")
