"""What the workload image is made of: its Containerfile read strictly, its pins, its sources, and when it is built."""

import ast
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from importlib.metadata import packages_distributions, requires

import pytest
import tree
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tree import ROOT, TEMPLATE_FILES, render

from harness.spec import Timing, WorkloadSpec
from harness.spec.replica import ReplicaSpec
from tests.support import schemas

ROLE = ROOT / "roles/workload_image"


def instructions():
    """Instruction and argument, line by line; continuations joined, comments left out."""
    text = re.sub(r"\\\n", " ", (ROLE / "files/Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, argument.strip()) for name, _, argument in (line.partition(" ") for line in lines)]


def arguments(name):
    return [argument for found, argument in instructions() if found == name]


def pins(path):
    found = re.findall(r"^([\w.-]+)==([\w.!+]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_layers_that_change_rarely_come_first():
    order = [
        argument.split()[-1] if name == "COPY" else "pip"
        for name, argument in instructions()
        if name in {"COPY", "RUN"}
    ]
    assert order == ["/opt/workload/", "pip", "/opt/workload/requirements.txt", "pip", "/opt/workload/harness", "pip"]
    torch, rest, ours = arguments("RUN")
    assert "--constraint /opt/workload/cuda.txt" in torch
    assert "--requirement /opt/workload/torch.txt" in torch
    assert "--requirement /opt/workload/requirements.txt" in rest
    assert ours.endswith(" /opt/workload/harness")


def test_the_layer_of_torch_is_made_anew_by_no_other_line_of_the_list():
    text = (ROLE / "files/requirements.txt").read_text()

    def torch(requirements):
        return resolved("__workload_image_context", workload_image_requirements=requirements)["torch.txt"]

    lines = torch("").splitlines()
    assert [line for line in lines if line.startswith("torch")] == [
        f"torch=={pins(ROOT / 'requirements.txt')['torch']}"
    ]
    assert set(lines) <= set(text.splitlines())
    assert torch(text.replace("fastapi==", "fastapi>=") + "torchmetrics==1.0\n") == torch("")
    assert torch(text.replace("torch==", "torch>=")) != torch("")
    assert torch("fastapi==1\n") == ""


def test_torch_finds_all_that_it_needs_at_versions_of_the_list():
    """A need that the first layer took at another version would be in the second one again."""
    listed = {
        canonicalize_name(re.split(r"[^\w.-]", line)[0])
        for line in resolved("__workload_image_context")["torch.txt"].splitlines()
    }
    needs, waiting = set(), ["torch", "numpy"]
    while waiting:
        name = waiting.pop()
        needs.add(name)
        for need in map(Requirement, requires(name) or ()):
            # Its CUDA libraries are those that torch itself pins; they are on no list of the project's.
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                found = canonicalize_name(need.name)
                if found in pins(ROLE / "files/requirements.txt") and found not in needs:
                    waiting.append(found)
    assert listed == needs


def test_nothing_of_the_machine_goes_in():
    for run in arguments("RUN"):
        assert "--mount=type=secret" in run or "pip" not in run
        assert not re.search(r"https?://|curl|wget|apt-get", run)
    assert [argument.split() for argument in arguments("COPY")] == [
        ["torch.txt", "cuda.txt", "/opt/workload/"],
        ["requirements.txt", "/opt/workload/requirements.txt"],
        ["harness", "/opt/workload/harness"],
    ]


def test_the_process_gets_its_signals_and_is_nobody():
    assert json.loads(arguments("ENTRYPOINT")[0]) == ["python", "-m", "harness.replica"]
    assert (arguments("USER"), arguments("STOPSIGNAL")) == (["65534:65534"], ["SIGTERM"])
    environment = dict(pair.split("=", 1) for pair in shlex.split(arguments("ENV")[0]))
    assert environment["PATH"].startswith("/opt/venv/bin:")
    assert environment["PYTHONPATH"] == "/opt/workload"


def test_compiled_files_need_no_writable_disk():
    assert all("unchecked-hash" in run or "UNCHECKED_HASH" in run for run in arguments("RUN"))
    assert all("--no-compile" in run for run in arguments("RUN")[:2])
    # What the venv compiled by the hour is made anew; what the layer below has is not written again.
    assert "force=True" in arguments("RUN")[0]
    assert "if not os.path.exists" in arguments("RUN")[1]


def test_the_pins_are_those_of_the_project():
    ours, project = pins(ROLE / "files/requirements.txt"), pins(ROOT / "requirements.txt")
    assert ours == {name: project[name] for name in ours}
    assert pins(ROLE / "files/cuda.txt") == pins(ROOT / "requirements-cuda.txt")


def test_cuda_libraries_are_those_of_the_list_unless_another_list_is_given():
    assert resolved("__workload_image_context")["cuda.txt"] == (ROLE / "files/cuda.txt").read_text()
    assert resolved("__workload_image_context", workload_image_requirements="torch==2.11.0\n")["cuda.txt"] == ""


@functools.cache
def lookups():
    """Let lookups be found by their full names, as ansible-playbook does at its start."""
    tree.load_plugins()


def resolved(name, images="", **changed):
    """One of the role's private variables for a machine, resolved as Ansible resolves it."""
    lookups()
    values = {**tree.load(ROLE / "vars/main.yml"), "__workload_image_project": str(ROOT)}
    given = {"role_path": str(ROLE), **tree.variables(), **changed}
    return tree.template(values, {**given, "__workload_image_images": {"stdout": images}}, [name])[name]


def test_the_image_is_made_of_the_workloads_and_nothing_else_of_the_harness():
    context = resolved("__workload_image_context")
    assert {
        "Containerfile",
        "requirements.txt",
        "torch.txt",
        "cuda.txt",
        "harness/__init__.py",
        "harness/replica/__main__.py",
    } <= set(context)
    sources = {name for name in context if name.startswith("harness/")}
    assert sources == {f"harness/{name}.py" for name in ("__init__", "cgroup", "errors", "host")} | {
        str(path.relative_to(ROOT))
        for folder in ("replica", "spec", "traffic")
        for path in (ROOT / "harness" / folder).rglob("*.py")
    }
    for name in sources:
        assert context[name] == (ROOT / name).read_text()


def test_a_replica_and_a_load_pod_start_from_what_the_image_has(tmp_path):
    context = resolved("__workload_image_context")
    for name in context:
        if name.startswith("harness/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(context[name])
    told = ReplicaSpec.timed(WorkloadSpec(name="resnet50"), Timing(), beside=False).environment()
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import harness, harness.replica.runner, harness.spec.server;"
        "import harness.traffic.pod, harness.replica.engine.workload;"
        "from harness.replica.settings import from_environment; import os;"
        "print(harness.__file__, from_environment(os.environ).workload)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, **told},
    )
    assert ran.stdout.split() == [str(tmp_path / "harness" / "__init__.py"), "resnet50"]


def test_the_list_has_all_that_the_workloads_import_when_they_are_loaded():
    of = {**packages_distributions(), "mlperf_loadgen": {"mlcommons-loadgen"}, "triton": {"torch"}}
    imported = {
        name.partition(".")[0]
        for part in ("replica", "traffic")
        for path in (ROOT / "harness" / part).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([one.name for one in node.names] if isinstance(node, ast.Import) else [node.module])
    } - set(sys.stdlib_module_names)
    listed = set(pins(ROLE / "files/requirements.txt"))
    # Triton comes along with torch's CUDA build.
    missing = {name for name in imported - {"harness"} if not listed & set(map(canonicalize_name, of.get(name, ())))}
    assert {"torch", "numpy", "PIL", "httptools"} <= imported
    assert missing == set()


def test_the_tag_is_the_version_of_the_harness_which_a_campaign_asks_for():
    from harness.spec.kubernetes import IMAGE

    assert resolved("__workload_image_reference") == IMAGE
    assert resolved("__workload_image_reference", workload_image_tag="x").endswith("/workload:x")


def test_the_image_is_never_collected():
    assert any(fnmatch(resolved("__workload_image_reference"), one) for one in tree.variables()["crio_pinned_images"])


def test_the_base_is_pinned_by_digest_except_behind_a_mirror():
    assert re.fullmatch(
        r"docker\.io/library/python:[\d.]+-slim-\w+@sha256:[0-9a-f]{64}", resolved("__workload_image_base")
    )
    assert "@" not in resolved("__workload_image_base", workload_image_base_digest="")


def test_an_image_is_another_one_as_soon_as_anything_of_it_is():
    inputs = {
        resolved("__workload_image_inputs", **changed)
        for changed in ({}, {"workload_image_requirements": "numpy==1"}, {"workload_image_base": "localhost/base:1"})
    }
    assert len(inputs) == 3
    assert resolved("__workload_image_inputs") in inputs
    # How pip reaches its index makes no other image.
    assert resolved("__workload_image_inputs", workload_image_pip={"index-url": "https://mirror.example"}) in inputs


@pytest.mark.parametrize(
    ("images", "there"),
    [
        ("", False),
        ("[]\n", False),
        ("null\n", False),
        ('[{"id": "1", "digest": "sha256:1", "names": null}]', False),
        ('[{"id": "1", "digest": "sha256:1", "names": ["localhost/gpu-sharing-harness/workload:other"]}]', False),
        ('[{"id": "1", "digest": "sha256:1", "names": ["localhost/gpu-sharing-harness/workload:VERSION"]}]', True),
    ],
)
def test_an_image_that_is_there_is_not_built_again(images, there):
    import harness

    found = resolved("__workload_image_matching", images=images.replace("VERSION", harness.__version__))
    assert bool(found) is there


@pytest.mark.parametrize("minor", tree.variables()["versions_by_minor"])
@pytest.mark.parametrize("egress", [True, False])
def test_the_place_of_the_replicas_is_valid_for_every_minor(minor, egress):
    text = render(
        TEMPLATE_FILES["namespace.yaml.j2"],
        namespace_sources=["192.0.2.10", "10.244.49.64"],
        inference_namespace_egress=egress,
    )
    for document in yaml.safe_load_all(text):
        schemas.validate(document, minor)
