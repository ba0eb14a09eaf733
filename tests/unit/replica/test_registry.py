"""From a name to a workload, and what is said when there is none."""

import pytest

from harness.metrics.catalogue import CATALOGUE
from harness.replica import errors, hostile, registry
from harness.replica.errors import CannotBeMetError, ExitCode
from harness.replica.settings import Settings
from harness.spec.workload import BUILTIN_WORKLOADS, HOSTILE_WORKLOADS, SERVER, STREAMING_SERVER


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str, name: str = f"own_{id(tmp_path)}") -> str:
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_built_in_names_lead_to_a_factory(name):
    assert registry.find_factory(name).__module__.startswith("harness.replica.models.")


def test_the_campaign_file_knows_the_same_names_and_what_their_metrics_are():
    assert set(registry.BUILTIN) == set(BUILTIN_WORKLOADS)
    assert set(registry.HOSTILE) == set(HOSTILE_WORKLOADS) == set(hostile.KINDS)
    publishing = {workload for metric in CATALOGUE.values() for workload in metric.workloads}
    assert publishing <= {*BUILTIN_WORKLOADS, SERVER, STREAMING_SERVER}


def test_own_workload_is_made_with_the_settings(module):
    name = module(
        "class Own:\n    name = 'own'\n    def __init__(self, settings): self.settings = settings\n"
        "    def infer(self): return self.settings.batch_size\nmake = Own\n"
    )
    settings = Settings(workload=f"{name}:make", batch_size=3)
    workload = registry.load(settings)
    assert workload.settings is settings
    assert workload.infer() == 3


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("resnet", "'resnet' is neither a built-in workload .*did you mean `resnet50"),
        ("unheard-of", "known here: resnet50, distilbert, whisper"),
        (":make", "nor of the form module:factory"),
        ("module:", "nor of the form module:factory"),
        ("no_such_module_anywhere:make", "no module 'no_such_module_anywhere'.*looked for from /"),
        ("harness.no_such:make", "no module 'harness.no_such'"),
        ("json:lods", "module json .* has no callable 'lods'; did you mean `loads"),
        ("harness.replica.registry:BUILTIN", "has no callable 'BUILTIN'"),
    ],
)
def test_a_name_that_leads_nowhere(target, says):
    with pytest.raises(CannotBeMetError, match=says) as caught:
        registry.find_factory(target)
    assert caught.value.exit_code is ExitCode.CANNOT_BE_MET


def test_a_module_that_lacks_something_of_its_own_is_not_called_missing(module):
    name = module("import a_library_nobody_has\n", name="needs_a_library")
    with pytest.raises(ModuleNotFoundError, match="a_library_nobody_has"):
        registry.find_factory(f"{name}:make")


def test_what_a_factory_returns_must_serve(module):
    name = module("def make(settings): return object()\n", name="returns_nothing_useful")
    with pytest.raises(CannotBeMetError, match=r"returned a object that has no infer\(\)"):
        registry.load(Settings(workload=f"{name}:make"))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity ..."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_every_way_of_running_out_of_memory_is_one_sentence_and_one_exit_code(error):
    translated = errors.translated(error)
    assert isinstance(translated, errors.OutOfMemoryError)
    assert translated.exit_code is ExitCode.OUT_OF_MEMORY
    assert translated.__cause__ is error
    assert "\n" not in str(translated)
    assert "Use fewer replicas" in str(translated)


def test_other_errors_stay_what_they_are():
    error = RuntimeError("shapes do not match")
    assert errors.translated(error) is error
