"""The replica: load the workload, warm it up, serve until told to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from harness.replica import errors, kernel_trace, registry
from harness.replica.errors import CannotBeMetError, ExitCode, WorkloadError
from harness.replica.frontends import Frontend, of_scenario
from harness.replica.graceful_shutdown import DEADLINE_S, FINISH_REQUEST_S, RequestAbandoned, SignalWatcher
from harness.replica.metrics import CONTENT_TYPE, RequestMetrics
from harness.replica.registry import Workload
from harness.replica.settings import ReadSettings, Settings, from_environment
from harness.replica.status import ReplicaStatus
from harness.spec.replica import NEXT_LOAD, NextLoad
from harness.traffic.endpoint import Endpoint, Response, Routes
from harness.traffic.records import RecordLog

LOG_NAME = "latencies.bin"
FILES_OF_LOAD = {
    "requests": "requests.bin",
    "gaps": "gaps.bin",
    "answers": "answers.bin",
    "turns": "turns.bin",
    "engine_metrics": "engine_metrics.csv",
}
"""What is written while a server is asked, by the route that serves it."""
_LABELS = ("workload", "precision", "execution", "batch_size", "device")
"""Facts that ``inference_info`` has."""
T = TypeVar("T")


def main(environment: Mapping[str, str] = os.environ) -> ExitCode:
    """Run one replica until a signal or a failure; returns the exit code."""
    watcher = SignalWatcher()
    try:
        settings = from_environment(environment)
        if settings.cpus is not None:
            _pin(settings.cpus)
    except WorkloadError as error:
        _say(str(error))
        return error.exit_code
    status = ReplicaStatus(settings)
    try:
        Replica(settings, status, watcher).run()
    # Whatever a workload raises, also SystemExit, must end as one line and a code that the starter can read.
    except BaseException as error:  # noqa: BLE001
        return _report_failure(error, status)
    return ExitCode.STOPPED


def _pin(cpus: Iterable[int]) -> None:
    """Run on these CPUs alone, with every thread and process that comes. Raises CannotBeMetError."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise CannotBeMetError(f"REPLICA_CPUS: cannot run on the CPUs {cpus}: {error.strerror}.") from error


class Replica:
    """One replica's life: start, load, warm up, serve, drain."""

    def __init__(self, settings: Settings, status: ReplicaStatus, watcher: SignalWatcher) -> None:
        self._settings = settings
        self._home = settings.replica_dir or Path()
        self._status = status
        self._watcher = watcher
        self._metrics = RequestMetrics()
        self._workload: Workload | None = None
        self._frontend: Frontend | None = None
        self._read: ReadSettings | None = None
        self._described: Mapping[str, object] = {}
        self._phase_change = threading.Lock()
        self._stopping = threading.Event()
        self._told_to_stop = threading.Event()
        self._told_of_load = threading.Event()

    def run(self) -> None:
        """Serve until told to stop. Raises what the workload raises."""
        self._open_files()
        server = self._listen()
        self._watcher.watch(self)
        self._enter("loading", port=server.port)
        if self._settings.workload not in registry.BUILTIN:
            self._read = ReadSettings(self._settings)
        under_mode = self._come_under_sharing_mode()
        self._workload = workload = registry.load(self._read or self._settings)
        self._described = self._call("describe", {})
        self._status.update(**{**self._described, **under_mode})
        self._metrics.set_info({label: self._status.fact(label) for label in _LABELS})
        self._metrics.publish(*self._call("published", ()))
        with self._call("serving", contextlib.nullcontext()):
            self._warm_up(workload)
            if not self._settings.loads:
                self._serve_load(workload)
            while self._settings.loads and self._take_next_load(workload):
                self._serve_load(workload)
        self._linger()
        self._call("close", None)
        self._status.update(phase="stopped", **self._call("outcome", {}))
        self._watcher.drained.set()
        _say(f"stopped after {self._metrics.requests} requests")

    def begin_drain(self) -> None:
        """Stop after the request in flight; before the first one, end the process."""
        with self._phase_change:
            self._stopping.set()
            self._told_to_stop.set()
            self._told_of_load.set()
            if self._frontend is not None:
                self._frontend.hurry()
            if hasattr(self._workload, "load") or self._settings.trace:
                self._watcher.drained.set()  # its requests end at their own pace; whoever started us sets the limit
            if self._status.phase == "failed":
                return  # it ends by itself, with its own code
            if self._status.phase not in {"serving", "finished", "waiting"}:
                self._end_process(ExitCode.STOPPED)
            self._status.update(phase="draining")

    def give_up(self) -> None:
        """End the process although a request is stuck in it; what was measured before is kept."""
        if self._metrics.log:
            self._metrics.log.close()
        self._end_process(
            ExitCode.STUCK,
            f"the request in flight could not be stopped within {DEADLINE_S:g} s of the signal; it is stuck outside Python",
        )

    def in_request(self) -> bool:
        """Whether a request is in flight, and may be abandoned."""
        return self._metrics.in_flight > 0

    def _call(self, method: str, otherwise: T) -> T:
        """Return what an optional method of the workload returns; ``otherwise`` also before there is one."""
        return cast("T", getattr(self._workload, method, lambda: otherwise)())

    def _open_files(self) -> None:
        folder = self._settings.replica_dir
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._status.update()
            self._metrics.log = RecordLog(folder / LOG_NAME)
        except OSError as error:
            raise CannotBeMetError(f"REPLICA_DIR: cannot write in {folder}: {error.strerror}.") from error

    def _listen(self) -> Endpoint:
        routes: Routes = {
            "/metrics": lambda: Response(200, self._metrics.render().encode(), CONTENT_TYPE),
            "/health": self._answer_health,
            "/status": self._answer_status,
            "/latencies": lambda: _log_of(self._metrics.log, b"no REPLICA_DIR is set, so no latencies are kept\n"),
            "/services": lambda: _log_of(
                self._frontend.service_log if self._frontend else None,
                b"no service times are kept beside the latencies in the closed loop\n",
            ),
            "/finish": self._answer_finish,
            "/next": self._answer_next,
            **{f"/{route}": functools.partial(self._answer_file, name) for route, name in FILES_OF_LOAD.items()},
        }
        host, port = self._settings.host, self._settings.port
        try:
            return Endpoint(host, port, routes)
        except OSError as error:
            raise CannotBeMetError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another HOST or PORT (0: any free one)."
            ) from error

    def _enter(self, phase: str, **facts: object) -> None:
        """Enter a phase, unless a signal came first: then wait for the watcher to end the process."""
        with self._phase_change:
            self._status.update(phase=phase, **facts)
        _say(f"{phase} {self._settings.workload} (replica {self._settings.replica}, port {self._status.fact('port')})")

    def _come_under_sharing_mode(self) -> Mapping[str, object]:
        """Do what the sharing mode asks of this process before a workload uses the GPU; facts that outdo those of the workload."""
        target = self._settings.sharing
        return registry.find_function(target, "REPLICA_SHARING")() if target else {}

    def _take_next_load(self, workload: Workload) -> bool:
        """Wait for another load and make it this replica's; False: it ends.

        What is written meanwhile goes where the replica began: a load's folder is taken away once it is finished.
        """
        home = self._home
        with self._phase_change:
            if self._told_to_stop.is_set():
                return False
            self._status.update(phase="finished")
            self._status.move(home)
            self._status.update(phase="waiting")
        self._told_of_load.wait()
        if self._told_to_stop.is_set():
            return False
        self._told_of_load.clear()
        try:
            load = NextLoad.model_validate_json((home / NEXT_LOAD).read_bytes())
        except (OSError, ValueError) as error:
            raise CannotBeMetError(f"{home / NEXT_LOAD} does not say which load is next: {error}") from error
        scenario = load.spec.workload.scenario
        self._settings = dataclasses.replace(self._settings, scenario=scenario, spec=load.spec, replica_dir=load.folder)
        getattr(workload, "take_load", lambda _settings: None)(self._settings)
        self._status.move(load.folder)
        self._metrics.begin_load(*self._call("published", ()))
        self._open_files()
        self._status.update(abandoned_requests=0, **self._outcome())
        with self._phase_change:
            if not self._told_to_stop.is_set():
                self._stopping.clear()
        return True

    def _warm_up(self, workload: Workload) -> None:
        self._enter("warming")
        for _ in range(self._settings.warmup_requests):
            _checked(workload.infer(), workload)
        # What loading left behind lives as long as the process: let no collection walk it again.
        gc.collect()
        gc.freeze()
        self._metrics.forget_warm_up()

    def _serve_load(self, workload: Workload) -> None:
        load: Callable[[RequestMetrics], Frontend] | None = getattr(workload, "load", None)
        self._frontend = frontend = (
            load(self._metrics)
            if load
            else of_scenario(self._settings, workload, self._metrics, lambda: self._status.phase)
        )
        self._enter("serving", **({frontend.name: frontend.facts()} if frontend else {}))
        limit = threading.Timer(self._settings.run_s or 0.0, self._stopping.set)
        limit.daemon = True
        if self._settings.run_s is not None:
            limit.start()
        try:
            if frontend is None:
                self._serve(workload)
            else:
                frontend.run_and_report(self._stopping, self._status.update)
        except RequestAbandoned:
            self._status.update(abandoned_requests=1)
            _say(
                f"the request in flight was abandoned: it took more than {FINISH_REQUEST_S:g} s to finish after the signal"
            )
        finally:
            limit.cancel()
            self._metrics.in_flight = 0
            self._status.update(**self._outcome())
            if self._metrics.log:
                self._metrics.log.close()
        if self._settings.trace:
            self._trace(workload)

    def _serve(self, workload: Workload) -> None:
        """Serve request after request: the loop that is measured, so nothing here that need not be."""
        infer, metrics, book = workload.infer, self._metrics, self._metrics.book
        stopping, pause_s, now_ns = self._stopping, _pause(self._settings, workload), time.perf_counter_ns
        while not stopping.is_set():
            metrics.in_flight = 1
            start_ns = now_ns()
            inputs = infer()
            end_ns = now_ns()
            metrics.in_flight = 0
            book(start_ns, end_ns, inputs if type(inputs) is int else _checked(inputs, workload))
            if pause_s is not None:
                stopping.wait(pause_s())

    def _trace(self, workload: Workload) -> None:
        """What would slow down what is measured, after it: kernels, and how well a model does on what was held out."""
        _say("traces its kernels")
        folder = self._settings.replica_dir or Path()
        try:
            self._status.update(trace=kernel_trace.trace(workload.infer, folder))
        except (RuntimeError, OSError) as error:  # also no memory for the trace: what was recorded stays
            self._status.update(trace={"absent": f"torch's profiler failed: {str(error).partition(chr(10))[0]}"})
        if "accuracy" not in self._call("outcome", {}):
            self._status.update(**self._call("evaluate", {}))

    def _outcome(self) -> dict[str, object]:
        """What came of it so far; what the replica counted itself has the last word."""
        ignored = self._read.ignored(self._described) if self._read else {}
        return {**gpu_memory(), **self._call("outcome", {}), **ignored, **self._metrics.served()}

    def _linger(self) -> None:
        """Stay after the time to run is over, so that what was written can be fetched, until a signal or the limit."""
        with self._phase_change:
            if self._told_to_stop.is_set():
                return
            self._status.update(phase="finished")
        _say(
            f"finished after {self._metrics.requests} requests; stays {self._settings.linger_s:g} s to be asked for them"
        )
        self._told_to_stop.wait(self._settings.linger_s)

    def _answer_health(self) -> Response:
        """Ready after the first counted request, or at once where requests come from outside or at times of their own."""
        phase, requests, scenario = self._status.phase, self._metrics.requests, self._settings.scenario
        proved = requests > 0 or hasattr(self._workload, "load") or (scenario is not None and scenario.kind == "http")
        body = json.dumps({"phase": phase, "requests": requests}).encode() + b"\n"
        return Response(200 if phase == "serving" and proved else 503, body, "application/json")

    def _answer_status(self) -> Response:
        return Response(200, self._status.render(**self._outcome()), "application/json")

    def _answer_finish(self) -> Response:
        """Serve no more, and stay to be asked for what was written. A GET: the harness may send pods nothing else."""
        self._stopping.set()
        return self._answer_status()

    def _answer_next(self) -> Response:
        """Serve the load that the file in the replica's folder says. A GET, as above."""
        if not self._settings.loads:
            return Response(404, b"this replica serves one load\n")
        self._told_of_load.set()
        return self._answer_status()

    def _answer_file(self, name: str) -> Response:
        folder = self._settings.replica_dir
        if folder is None or not (folder / name).is_file():
            return Response(404, f"there is no {name}\n".encode())
        return Response(200, b"", "application/octet-stream", folder / name)

    def _end_process(self, code: ExitCode, error: str = "") -> None:
        try:
            self._status.update(phase="stopped", error=error)
            _say(error or "stopped")
        finally:
            os._exit(code)


def _log_of(log: RecordLog | None, absent: bytes) -> Response:
    if log is None:
        return Response(404, absent)
    log.flush()
    return Response(200, b"", "application/octet-stream", log.path)


def _pause(settings: Settings, workload: Workload) -> Callable[[], float] | None:
    """Return what tells the pause after a request, in seconds; None: there is none."""
    think_s: Callable[[], float] | None = getattr(workload, "think_s", None)
    sleep_s = settings.inference_sleep_s
    if think_s is None:
        return (lambda: sleep_s) if sleep_s else None
    return lambda: sleep_s + think_s()


def _checked(inputs: object, workload: Workload) -> int:
    if type(inputs) is not int or inputs < 0:
        name = getattr(workload, "name", type(workload).__name__)
        raise CannotBeMetError(f"infer() of workload {name} must return the number of inputs served, not {inputs!r}.")
    return inputs


def gpu_memory() -> dict[str, object]:
    """GPU memory that torch holds for this process, and held at most, without its context; nothing where torch uses no GPU."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)  # as far as it is imported yet
    if not getattr(cuda, "is_initialized", bool)():
        return {}
    now, most = cuda.memory_reserved(), cuda.max_memory_reserved()
    return {"gpu_reserved_bytes": now, "gpu_reserved_most_bytes": most}


def _report_failure(error: BaseException, status: ReplicaStatus) -> ExitCode:
    """Put the failure into ``replica.json`` and, as the last line, on stderr."""
    error = errors.translated(error)
    if isinstance(error, WorkloadError):
        message, code = str(error), error.exit_code
    else:
        traceback.print_exception(error)
        message = f"workload failed while {status.phase}: {type(error).__name__}: {error}"
        code = ExitCode.FAILED
    try:
        status.update(phase="failed", error=message)
    except OSError as unwritable:
        message = f"{message} (and replica.json cannot be written: {unwritable.strerror})"
    _say(message)
    return code


def _say(message: str) -> None:
    sys.stderr.write(f"replica: {message}\n")
    sys.stderr.flush()
