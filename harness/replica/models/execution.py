"""What the built-in workloads share: the device, the number format, how torch runs a model, and one batch a request."""

from __future__ import annotations

import itertools
import os
import platform
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from harness.replica.errors import CannotBeMetError
from harness.replica.gpu import whole_gpu
from harness.replica.settings import Settings
from harness.replica.status import closed_pipe

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
POOL_BYTES = 64 * 2**20
POOL_MOST_BATCHES = 8
_CAPTURE_WARMUPS = 3
FEEDING_THREADS = 4
"""Most CPU threads beside a GPU, where they copy inputs and no more: a copy by as many as there are CPUs waits for the slowest."""

Step = Callable[..., Tensor]
Batch = TypeVar("Batch", Tensor, tuple[Tensor, Tensor])


def prepare_device(settings: Settings) -> torch.device:
    """Choose the device, its CPUs, and torch's threads and stream. Raises CannotBeMetError when a GPU is demanded and absent."""
    if settings.device != "cpu" and (why := closed_pipe(os.environ)):
        raise CannotBeMetError(
            f"CUDA_MPS_PIPE_DIRECTORY: {why}, so that this replica would run without MPS or not at all."
        )
    has_gpu = settings.device != "cpu" and torch.cuda.is_available()
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    elif has_gpu:
        torch.set_num_threads(min(FEEDING_THREADS, torch.get_num_threads()))
    if settings.device == "cuda" and not has_gpu:
        built = "is built without CUDA" if torch.version.cuda is None else "sees no GPU"
        raise CannotBeMetError(
            f"DEVICE: cuda is demanded and torch {torch.__version__} {built}; check the driver, or use cpu or auto."
        )
    if settings.execution == "cuda-graph" and not has_gpu:
        raise CannotBeMetError("EXECUTION: cuda-graph needs a GPU and there is none; use eager or compiled.")
    if settings.stream_priority and not has_gpu:
        raise CannotBeMetError("STREAM_PRIORITY: streams are a GPU's, and there is none; leave it out.")
    if settings.stream_priority:
        low, high = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # static, whatever its stub says
        stream = torch.cuda.Stream(priority=high if settings.stream_priority == "high" else low)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(stream)
    if settings.shared_cpus and not has_gpu:  # of this thread, and of those that torch starts from it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-settings.shared_cpus :])
    return torch.device("cuda" if has_gpu else "cpu")


def describe(settings: Settings, device: torch.device, model: nn.Module) -> dict[str, object]:
    """Return the facts about a torch workload that ``replica.json`` carries."""
    return {
        **describe_device(device),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": str(settings.checkpoint) if settings.checkpoint else f"random, seed {settings.seed}",
    }


def describe_device(device: torch.device) -> dict[str, object]:
    """Return the facts about where it runs, and what runs it."""
    on_gpu = device.type == "cuda"
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if on_gpu else ""
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "device_uuid": uuid,
        **({"gpu": whole_gpu(uuid)} if on_gpu else {}),
        # Under MPS those of its share.
        "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call]
        "tf32": bool(torch.backends.cudnn.allow_tf32) if on_gpu else None,
        "stream_priority": torch.cuda.current_stream(device).priority if on_gpu else None,
        "threads": torch.get_num_threads(),
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def input_generator(settings: Settings) -> torch.Generator:
    """Return the source of synthetic inputs: the same for the same seed and replica, another for another one."""
    return torch.Generator().manual_seed((settings.seed * 1_000_003 + settings.replica + 1) % 2**63)


def input_pool(make_batch: Callable[[], Batch], device: torch.device, batches: int | None = None) -> list[Batch]:
    """Return host batches to serve in turn, with their labels or without, page-locked for a GPU so that their copy is asynchronous.

    ``batches``: how many; None: a few, and fewer where they are large.
    """
    first = make_batch()
    nbytes: int = first.nbytes if isinstance(first, Tensor) else first[0].nbytes
    few = max(1, min(POOL_MOST_BATCHES, POOL_BYTES // max(nbytes, 1)))
    pool: list[Batch] = [first]
    pool.extend(make_batch() for _ in range((batches or few) - 1))
    return [page_locked(batch) for batch in pool] if device.type == "cuda" else pool


def page_locked(batch: Batch) -> Batch:
    """The same in memory that a GPU reads by itself."""
    return batch.pin_memory() if isinstance(batch, Tensor) else (batch[0].pin_memory(), batch[1].pin_memory())


def accelerate(forward: Step, examples: tuple[Tensor, ...], settings: Settings, device: torch.device) -> Step:
    """Return ``forward`` run the way EXECUTION says.

    The result takes tensors of exactly the shapes of ``examples``, from the host or the device, and returns one
    tensor on the device; with cuda-graph that tensor is overwritten by the next call.
    """
    if settings.execution == "cuda-graph":
        return Captured(forward, examples, device)
    run = compiled(forward) if settings.execution == "compiled" else forward

    def step(*inputs: Tensor) -> Tensor:
        return run(*(tensor.to(device, non_blocking=True) for tensor in inputs))

    def step_of_one(given: Tensor) -> Tensor:
        return run(given.to(device, non_blocking=True))

    return step_of_one if len(examples) == 1 else step


def accelerate_up_to(
    forward: Step, example: Tensor, settings: Settings, device: torch.device
) -> Callable[[Tensor, int], Tensor]:
    """Return ``forward`` for the first ``inputs`` rows of a batch like ``example``, run the way EXECUTION says.

    Compiled code and CUDA graphs know one shape each: one is made for every power of two, and a batch in
    between is padded to the next. Offline serves whole batches, and the last of a test is padded to one.
    """
    if settings.execution == "eager":
        step = accelerate(forward, (example,), settings, device)
        return lambda batch, inputs: step(batch[:inputs])
    largest = len(example)
    offline = settings.scenario is not None and settings.scenario.kind == "offline"
    sizes = [largest] if offline else sorted({min(2**power, largest) for power in range(largest.bit_length() + 1)})
    if settings.execution == "compiled":  # one shape more would be an error, not eager with one line in a log
        limits = torch._dynamo.config  # noqa: SLF001 - torch has no other place for it
        limits.recompile_limit = max(limits.recompile_limit, len(sizes))
        limits.fail_on_recompile_limit_hit = True
    steps = [accelerate(forward, (example[:size],), settings, device) for size in sizes]
    for size, step in zip(sizes, steps, strict=True):
        step(example[:size])  # compiled at the first call: before anybody waits for an answer

    def run(batch: Tensor, inputs: int) -> Tensor:
        place = bisect_left(sizes, inputs)
        return steps[place](batch[: sizes[place]])

    return run


def compiled(forward: Step) -> Step:
    """Return ``forward`` compiled for the shapes of its first call."""
    return torch.compile(forward, dynamic=False)


class Captured:
    """One recorded call: no Python and no launch per kernel is left.

    A graph knows only addresses, so ``forward`` is kept, and with it the weights and buffers that it works on. It is run a few
    times first on ``examples``, tensors of exactly the shapes to come, and its work of those times is done.
    """

    def __init__(
        self, forward: Step, examples: tuple[Tensor, ...], device: torch.device, *, training: bool = False
    ) -> None:
        self._forward = forward
        with torch.inference_mode(mode=not training):
            self._record(forward, examples, device)

    def _record(self, forward: Step, examples: tuple[Tensor, ...], device: torch.device) -> None:
        self._inputs = [example.to(device, copy=True) for example in examples]
        current = torch.cuda.current_stream(device)
        # Kernels of a graph keep the priority of the stream that they were recorded on.
        side_stream = torch.cuda.Stream(device, priority=current.priority)  # type: ignore[no-untyped-call]
        side_stream.wait_stream(current)
        with torch.cuda.stream(side_stream):
            for _ in range(_CAPTURE_WARMUPS):
                forward(*self._inputs)
        current.wait_stream(side_stream)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=side_stream):
            self._output = forward(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Copy the inputs to where the graph reads them, and run it."""
        for static, given in zip(self._inputs, inputs, strict=True):
            static.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._output


class PoolModel:
    """A model and its batches on the host, taken in turn; ``facts`` are those of ``describe``, and more."""

    def __init__(
        self,
        model: nn.Module,
        pool: Sequence[Any],
        settings: Settings,
        device: torch.device,
        facts: dict[str, object] | None = None,
    ) -> None:
        self.name = settings.workload
        self.model = model
        self.pool = pool
        self._facts = facts or describe(settings, device, model)
        self._next_batch = itertools.cycle(pool).__next__
        self._batch_size = settings.batch_size
        self._settings = settings
        self._device = device

    def describe(self) -> dict[str, object]:
        """Return what runs where."""
        return self._facts


class PoolWorkload(PoolModel):
    """A model that answers one batch of its pool a request."""

    def serving(self) -> torch.inference_mode:
        """Entered once around all requests: entering it for each costs an eager request 1%."""
        return torch.inference_mode()

    def answer(self, inputs: Tensor) -> Tensor:
        """A batch on the host -> its answers on the host."""
        raise NotImplementedError

    def infer(self) -> int:
        """Serve one batch; returns its size."""
        self.answer(self._next_batch())
        return self._batch_size


class Classifier(PoolWorkload):
    """A model whose answer is the class of each input: [B, ...] -> logits [B, classes]."""

    def __init__(
        self,
        model: nn.Module,
        pool: Sequence[Tensor],
        settings: Settings,
        device: torch.device,
        facts: dict[str, object] | None = None,
    ) -> None:
        super().__init__(model, pool, settings, device, facts)
        self._forward = accelerate(model, (pool[0],), settings, device)

    def answer(self, inputs: Tensor) -> Tensor:
        """[B, ...] on the host -> classes [B] on the host."""
        return self._forward(inputs).argmax(-1).cpu()

    def serve_up_to(self) -> Callable[[int], int]:
        """Return what serves any number of inputs up to the batch size in one pass; for dynamic batching."""
        step = accelerate_up_to(self.model, self.pool[0], self._settings, self._device)

        def serve(inputs: int) -> int:
            step(self._next_batch(), inputs).argmax(-1).cpu()
            return inputs

        return serve
