"""The one table: complete for every minor, every sum and image well formed, and exactly what the roles take from it."""

import re

import pytest
import tree
from tree import ROOT

from tests.support.cases import every

TABLE = tree.load(ROOT / "inventory/group_vars/all/versions.yml")
MINORS = TABLE["versions_by_minor"]
IMAGE = re.compile(r"[a-z0-9.-]+\.[a-z]+(/[a-z0-9._-]+)+:[A-Za-z0-9._-]+")
# What kubeadm itself starts from the table's row.
KUBEADM_IMAGES = {"kube_apiserver", "kube_controller_manager", "kube_scheduler", "kube_proxy", "coredns", "etcd"}
FILES = [*(ROOT / "roles").rglob("*.yml"), *(ROOT / "roles").rglob("*.j2"), *tree.TEMPLATES.rglob("*.j2")]
WHERE = [path for path in FILES if "roles/versions/" not in str(path)]  # the tables themselves are defaults, too


def images():
    rows = [*MINORS.values(), TABLE["versions_common"], *TABLE["versions_calico"].values()]
    return [image for row in rows for image in row["images"].values()]


def test_the_default_minor_is_in_the_table_and_the_journal_s_too():
    assert TABLE["kubernetes_minor"] in MINORS
    assert "1.34" in MINORS


def test_the_driver_s_floor_stands_beside_the_torch_and_the_cuda_that_are_installed():
    torch = TABLE["versions_common"]["torch"]
    assert f"\ntorch=={torch['version']}\n" in (ROOT / "roles/workload_image/files/requirements.txt").read_text()
    assert f"\ncuda-toolkit=={torch['cuda']}." in (ROOT / "requirements-cuda.txt").read_text()
    # The oldest driver of each CUDA, from its release notes.
    assert torch["driver_min"] == {"13.0": "580.65.06"}[torch["cuda"]]


@every(MINORS)
def test_every_minor_has_the_same_entries(minor):
    first = next(iter(MINORS.values()))
    assert set(MINORS[minor]) == set(first)
    assert set(MINORS[minor]["images"]) == set(first["images"])


@every(MINORS)
def test_the_versions_of_a_row_belong_together(minor):
    row = MINORS[minor]
    assert [row[name].rpartition(".")[0] for name in ("kubernetes", "crio", "cri_tools")] == [minor] * 3
    assert all(f"/v{minor}/" in row[name] for name in ("apt_kubernetes", "apt_crio"))
    for name in ("kube_apiserver", "kube_controller_manager", "kube_scheduler", "kube_proxy", "kubectl"):
        assert row["images"][name].endswith(f":v{row['kubernetes']}")
    assert row["calico"] in TABLE["versions_calico"]


@pytest.mark.parametrize(("machine", "folder"), [({}, "amd64"), ({"architecture": "aarch64"}, "arm64")])
def test_packages_are_those_of_the_machine_s_architecture(machine, folder):
    names = ("versions_architecture", "versions_architectures", "versions_common")
    found = tree.template({name: TABLE[name] for name in names}, {"ansible_facts": {"node": machine}})
    assert found["versions_common"]["apt_nvidia"].endswith(f"/deb/{folder}/")


def test_every_architecture_that_preflight_takes_has_packages():
    assert set(tree.variables()["preflight_architectures"]) == set(TABLE["versions_architectures"])


@every(images())
def test_every_image_is_fully_qualified_and_pinned(image):
    assert IMAGE.fullmatch(image)
    assert not image.endswith(":latest")


@every(TABLE["versions_calico"])
def test_every_file_has_its_sum_and_its_version(version):
    for file in TABLE["versions_calico"][version]["files"]:
        assert re.fullmatch(r"[0-9a-f]{64}", file["sha256"])
        assert f"/v{version}/" in file["url"]
        assert file["url"].endswith("/" + file["name"])


@every(TABLE["versions_packages"])
def test_every_repository_has_its_key_and_every_package_its_version(repository):
    assert re.fullmatch(r"[0-9A-F]{40}", TABLE["versions_apt_keys"][repository]["fingerprint"])
    known = {**TABLE["versions_common"], **MINORS[TABLE["kubernetes_minor"]]}
    assert f"apt_{repository}" in known
    assert all(package["version"] in known for package in TABLE["versions_packages"][repository])


def test_the_roles_take_every_image_of_the_table_and_no_other():
    used = {name for path in WHERE for name in re.findall(r"versions\.images\.(\w+)", path.read_text())}
    listed = {*MINORS[TABLE["kubernetes_minor"]]["images"], *TABLE["versions_common"]["images"]}
    assert used | KUBEADM_IMAGES == listed


def installed_packages():
    found = [
        one["name"]
        for one in tree.load(ROOT / "roles/kubernetes_packages/vars/main.yml")["__kubernetes_packages_pinned"]
    ]
    toolkit = tree.load(ROOT / "roles/nvidia_toolkit/vars/main.yml")["__nvidia_toolkit_pinned_packages"]
    found += [package["name"] for package in toolkit]
    for task in tree.load(ROOT / "roles/crio/tasks/main.yml"):
        found += [package["name"] for package in task.get("deb_pinned", {}).get("packages", ())]
    return found


def test_the_packages_of_the_table_are_the_ones_that_the_roles_install():
    listed = [package["name"] for packages in TABLE["versions_packages"].values() for package in packages]
    assert sorted(installed_packages()) == sorted(listed)


def test_no_version_and_no_image_is_named_anywhere_else():
    for path in [*WHERE, *(ROOT / "playbooks").glob("*.yml")]:
        text = re.sub(r"apiVersion.*|\"cniVersion\".*|is version\('[\d.]+'", "", path.read_text())
        assert not re.search(r"\bv?\d+\.\d+\.\d+\b(?![./]\d)", re.sub(r"\b\d+(\.\d+){3}\b", "", text)), path
        assert not re.search(r"(docker\.io|quay\.io|registry\.k8s\.io)/", text), path


@every(MINORS)
def test_the_offline_list_is_what_the_table_says(minor):
    from harness.node.offline import from_variables

    row = {**TABLE["versions_common"], **MINORS[minor]}
    row["images"] = {**TABLE["versions_common"]["images"], **MINORS[minor]["images"]}
    listed = from_variables({**tree.variables(), "kubernetes_minor": minor, "versions": row})
    packages = [package for packages in TABLE["versions_packages"].values() for package in packages]
    assert {(one.name, one.version) for one in listed.packages} == {
        (one["name"], row[one["version"]]) for one in packages
    }
    calico = TABLE["versions_calico"][row["calico"]]
    assert set(listed.images) == {*row["images"].values(), *calico["images"].values()}
    assert {file.sha256 for file in listed.files} == {file["sha256"] for file in calico["files"]}
