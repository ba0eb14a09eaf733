"""The same on a GPU: what only a GPU can show. Skipped where there is none."""

import json
import os
import signal

import pytest
import torch

from harness.replica import registry
from harness.replica.errors import SettingError
from harness.replica.models import image_input
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

BUILTIN = tuple(name for name in registry.BUILTIN if not name.endswith("-training"))
TWO_PROCESSES = "data-parallel-training"
TRAINING = tuple(name for name in registry.BUILTIN if name.endswith("-training") and name != TWO_PROCESSES)
TINY = {"model_size": "tiny"}


def load(**settings):
    return registry.load(Settings(**settings))


def answers(workload) -> list[torch.Tensor]:
    """What the workload says to each batch of its pool, twice over: replays must not remember."""
    with workload.serving():
        return [workload.answer(batch) for batch in (*workload.pool, *workload.pool)]


def assert_same(found, expected):
    """Classes and tokens to the last one; numbers as far as two devices agree on them."""
    for one, other in zip(found, expected, strict=True):
        apart = 0.02 * float(other.abs().max()) if other.is_floating_point() else 0
        torch.testing.assert_close(one, other, rtol=0, atol=apart)


# torch's compiler imports a deprecated part of torch, and recommends TF32 where fp32 was asked for.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("execution", ["cuda-graph", "compiled"])
def test_every_way_to_run_gives_the_answers_of_eager_on_the_cpu(name, execution):
    def made(device, execution):
        return load(workload=name, device=device, execution=execution, batch_size=2, options=TINY)

    expected = answers(made("cpu", "eager"))
    assert_same(answers(made("cuda", "eager")), expected)
    assert_same(answers(made("cuda", execution)), expected)


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_base_size_is_the_same_eagerly_and_as_a_graph(name, precision):
    def made(execution):
        return load(workload=name, device="cuda", execution=execution, precision=precision)

    assert_same(answers(made("cuda-graph")), answers(made("eager")))


@pytest.mark.parametrize("name", BUILTIN)
def test_inputs_are_page_locked_and_facts_name_the_gpu(name):
    workload = load(workload=name, device="cuda", options=TINY)
    assert all(batch.is_pinned() for batch in workload.pool)
    facts = workload.describe()
    assert facts["device"] == "cuda"
    assert facts["device_name"] == torch.cuda.get_device_name()
    assert facts["device_uuid"].startswith("GPU-")
    assert facts["cuda"]


@pytest.mark.parametrize("execution", ["eager", "cuda-graph", "compiled"])
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_images_that_are_fed_in_bytes_get_the_answers_of_the_cpu(execution, fold):
    def made(device, execution):
        options = {"model_size": "tiny", "input": "host-uint8", "source_pixels": 48, "channels_last": True}
        return load(device=device, execution=execution, batch_size=8, options=options | {"fold_norms": fold})

    workloads = made("cpu", "eager"), made("cuda", execution)
    found = []
    for workload in workloads:
        with workload.serving():
            found.append([workload._answers.next(workload._forward, 8).clone() for _ in range(10)])
        workload.close()
    assert_same(found[1], found[0])


@pytest.mark.parametrize("scenario", [None, '{"kind": "server", "rate": 1}'])
def test_jpegs_that_nvjpeg_decodes_are_those_that_pillow_decodes(scenario):
    pytest.importorskip("torchvision")
    options = {"model_size": "tiny", "input": "jpeg", "source_pixels": 64, "channels_last": True}
    given = ScenarioSpec.model_validate_json(scenario) if scenario else None
    workload = load(device="cuda", batch_size=8, options=options, scenario=given)
    by_pillow = image_input.decoder(torch.device("cpu"))
    expected = [image_input.encoded(batch, by_pillow).decoded() for batch in workload.pool]

    found = []
    with workload.serving():
        for _ in expected:
            workload._answers._source.through(lambda batch: found.append(batch.cpu()) or batch, 8)
    workload.close()

    for one, other in zip(found, expected, strict=True):
        apart = [float((one.int() - each.int()).abs().float().mean()) for each in (other, other.roll(1, 0))]
        assert apart[0] < 6, "they smooth colours differently"
        assert apart[1] > 30, "other images are far from these"


@pytest.mark.parametrize("execution", ["eager", "cuda-graph"])
def test_images_that_come_when_they_come_get_the_answers_of_the_cpu_while_others_are_computed(execution):
    def made(device, execution):
        options = {"model_size": "tiny", "input": "host-uint8", "channels_last": True}
        scenario = ScenarioSpec(kind="server", rate=1)
        return load(device=device, execution=execution, batch_size=8, options=options, scenario=scenario)

    found = []
    for workload in made("cpu", "eager"), made("cuda", execution):
        with workload.serving():
            begin, begun, classes = workload.begin_up_to(), None, []
            for inputs in (8, 8, 5, 8, 1, 8, 8):
                begun, before = (inputs, begin(inputs)), begun
                if before is not None:
                    classes.append(before[1]()[: before[0]].clone())
        found.append(classes)
    assert_same(found[1], found[0])


def test_few_threads_copy_beside_a_gpu_unless_others_are_asked_for():
    torch.set_num_threads(os.cpu_count())
    load(device="cuda", options=TINY)
    assert torch.get_num_threads() == min(4, os.cpu_count())
    load(device="cuda", options=TINY, torch_threads=2)
    assert torch.get_num_threads() == 2


def test_a_gpu_s_convolutions_are_fused_and_change_no_answer():
    def made(*, fold):
        options = {"channels_last": True, "fold_norms": fold, "input": "device"}
        return load(device="cuda", precision="fp16", batch_size=8, options=options)

    plain, folded = made(fold=False), made(fold=True)
    with torch.inference_mode():
        expected, logits = (one.model(plain.pool[0]).float() for one in (plain, folded))
    assert folded.describe()["fused_convolutions"] >= 52
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.02 * float(expected.abs().max()))


@pytest.mark.parametrize("execution", ["eager", "cuda-graph"])
def test_convolutions_in_fp8_give_about_the_logits_of_the_others(execution):
    def made(device, **more):
        options = {"channels_last": True, "fold_norms": True, "fp8": True} | more
        way = execution if device == "cuda" else "eager"
        return load(device=device, precision="fp16", execution=way, batch_size=3, seed=2, options=options)

    ours, computed_by_torch, plain = made("cuda"), made("cpu"), made("cuda", fp8=False)
    with torch.inference_mode():
        found, same, expected = (one._forward(one.pool[0]).float().cpu() for one in (ours, computed_by_torch, plain))
    assert ours.describe()["fp8_convolutions"] == 52
    size = float(expected.pow(2).mean().sqrt())
    assert 0.001 < float((found - expected).pow(2).mean().sqrt()) / size < 0.15
    # The same sums, rounded; those that fall between two bytes may fall either way.
    assert float((found - same).pow(2).mean().sqrt()) / size < 0.03


def test_channels_that_the_kernel_does_not_take_are_refused():
    options = {"channels_last": True, "fold_norms": True, "fp8": True} | TINY
    with pytest.raises(SettingError, match="use the base model_size"):
        load(device="cuda", precision="fp16", options=options)


@pytest.mark.parametrize("execution", ["eager", "cuda-graph"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_matrices_in_fp8_give_about_the_logits_of_the_others(execution, precision):
    def made(device, **options):
        return load(
            workload="distilbert",
            device=device,
            precision=precision,
            execution=execution,
            batch_size=4,
            options=options,
        )

    plain, fp8 = made("cuda"), made("cuda", fp8=True)
    with torch.inference_mode():
        expected, found = (one._forward(plain.pool[0]).float().clone() for one in (plain, fp8))
    assert fp8.describe()["fp8_matrices"] == 37
    torch.testing.assert_close(found, expected, rtol=0, atol=0.3 * float(expected.abs().max()))


@pytest.mark.parametrize("execution", ["eager", "cuda-graph"])
def test_a_stream_has_the_priority_that_is_asked_for(start, execution):
    def found(**settings):
        replica = start(
            WORKLOAD="resnet50", DEVICE="cuda", EXECUTION=execution, WORKLOAD_OPTIONS=json.dumps(TINY), **settings
        )
        replica.wait_until_ready()
        replica.stop()
        return replica.status["stream_priority"]

    low, high = torch.cuda.Stream.priority_range()
    assert high < low
    assert (found(STREAM_PRIORITY="high"), found(STREAM_PRIORITY="low"), found()) == (high, low, 0)


MEMORY_HOG = '{"after_s": 0, "limit_gb": 1, "when_full": "free"}'


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {"EXECUTION": way, "PRECISION": "fp16"}) for name in BUILTIN for way in ("eager", "cuda-graph")),
        *(
            (name, {"EXECUTION": way, "PRECISION": "bf16", "BATCH_SIZE": "32"})
            for name in TRAINING
            for way in ("eager", "cuda-graph")
        ),
        *(
            (name, {"WORKLOAD_OPTIONS": MEMORY_HOG if name == "memory-hog" else "{}"})
            for name in registry.HOSTILE
            if name != "crash"
        ),
    ],
)
def test_a_replica_serves_and_drains(start, name, settings):
    replica = start(WORKLOAD=name, DEVICE="cuda", **settings)
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] >= 20)
    code = replica.stop(timeout_s=2.0)
    assert (code, replica.status["phase"], replica.status["device"]) == (0, "stopped", "cuda")
    assert replica.status["device_uuid"].startswith("GPU-")
    assert replica.status.get("training_steps", 20) >= 20


def test_a_gpu_that_is_full_has_its_exit_code(start):
    source = "import torch\ndef make(settings):\n    return torch.empty(2**46, device='cuda')\n"
    replica = start(source)
    assert replica.process.wait(60) == 4
    assert replica.last_line.startswith("replica: out of memory: CUDA out of memory")


def test_a_request_stuck_on_the_gpu_does_not_outlive_the_drain(start):
    # A kernel that spins for a minute while the main thread waits for it inside the driver.
    source = (
        "import torch\n"
        "class Own:\n"
        "    name, served = 'own', 0\n"
        "    def infer(self):\n"
        "        self.served += 1\n"
        "        if self.served > 5:\n"
        "            torch.cuda._sleep(120_000_000_000)\n"
        "        torch.cuda.synchronize()\n"
        "        return 1\n"
        "def make(settings):\n"
        "    torch.zeros(1, device='cuda')\n"
        "    return Own()\n"
    )
    replica = start(source, WARMUP_REQUESTS="0")
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] == 5)
    code = replica.stop(timeout_s=2.0)
    assert code == 5
    assert len(replica.latencies) == 5


def test_a_kernel_that_faults_ends_its_process(start):
    replica = start(WORKLOAD="crash", DEVICE="cuda", WORKLOAD_OPTIONS='{"after_s": 0}', WARMUP_REQUESTS="0")
    assert replica.process.wait(60) == 1
    assert "crashed as asked, 0 s after its first request: cuCtxSynchronize: " in replica.last_line


def losses(name, steps, **changes):
    """The losses of the first steps; a graph takes its trial steps before them."""
    workload = load(workload=name, device="cuda", batch_size=8, options=TINY, **changes)
    return [workload.last_loss for _ in range(steps) if workload.infer()]


@pytest.mark.parametrize("name", TRAINING)
def test_training_is_the_same_as_on_the_cpu(name):
    on_cpu = load(workload=name, device="cpu", batch_size=8, options=TINY)
    expected = [on_cpu.last_loss for _ in range(5) if on_cpu.infer()]
    assert losses(name, 5) == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize(
    ("execution", "precision"), [("cuda-graph", "fp32"), ("cuda-graph", "bf16"), ("eager", "fp16")]
)
def test_training_goes_on_with_every_step(name, execution, precision):
    found = losses(name, 60, execution=execution, precision=precision)
    assert len(set(found)) > 50, "every replay of a graph is a step"
    assert sum(found[-5:]) < 0.7 * sum(found[:5])


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_two_processes_train_on_a_gpu_each_or_on_one_and_drain(start, execution):
    replica = start(WORKLOAD=TWO_PROCESSES, DEVICE="cuda", EXECUTION=execution, PRECISION="bf16", BATCH_SIZE="32")
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] >= 20)
    code = replica.stop(timeout_s=2.0)
    status = replica.status
    assert (code, status["phase"], status["device"]) == (0, "stopped", "cuda")
    assert status["collectives"] == ("gloo" if torch.cuda.device_count() == 1 else "nccl")
    assert status["inputs"] == 64 * status["requests"]


def test_a_second_process_that_dies_on_a_gpu_ends_the_replica(start):
    replica = start(WORKLOAD=TWO_PROCESSES, DEVICE="cuda", WORKLOAD_OPTIONS='{"model_size": "tiny"}')
    replica.wait_until_ready()
    os.kill(replica.status["second_pid"], signal.SIGKILL)
    assert replica.process.wait(60) == 1
    assert replica.last_line.startswith("replica: the second process was ended by SIGKILL")
