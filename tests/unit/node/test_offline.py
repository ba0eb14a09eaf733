from typing import Any

import pytest

from harness.node.offline import from_variables

VARIABLES: dict[str, Any] = {
    "versions_architecture": "aarch64",
    "versions_architectures": {"x86_64": "amd64", "aarch64": "arm64"},
    "versions": {
        "kubernetes": "1.35.8",
        "crio": "1.35.6",
        "calico": "3.32.1",
        "apt_kubernetes": "https://pkgs.example/v1.35/deb",
        "apt_crio": "https://crio.example/deb/",
        "images": {"pause": "registry.k8s.io/pause:3.10.1", "etcd": "registry.k8s.io/etcd:3.6"},
    },
    "versions_packages": {
        "kubernetes": [{"name": "kubeadm", "version": "kubernetes"}, {"name": "kubelet", "version": "kubernetes"}],
        "crio": [{"name": "cri-o", "version": "crio"}],
    },
    "versions_packages_distribution": ["socat"],
    "versions_apt_keys": {
        "kubernetes": {"key": "Release.key", "fingerprint": "AA"},
        "crio": {"key": "https://keys.example/crio/gpgkey", "fingerprint": "BB"},
    },
    "versions_by_minor": {"1.35": {}},
    "versions_calico": {
        "3.32.1": {
            "files": [{"name": "crds.yaml", "url": "https://files.example/crds.yaml", "sha256": "ab"}],
            "images": {"node": "quay.io/calico/node:v3.32.1", "again": "registry.k8s.io/pause:3.10.1"},
        },
        "3.31.7": {"files": [{"name": "old.yaml", "url": "https://x", "sha256": "cd"}], "images": {}},
    },
    "mirror_files": "",
    "mirror_images": "",
    "mirror_apt_crio": "",
    "mirror_images_insecure": False,
    "workload_image_requirements": "# why\ntorch==2.13.0  # for this\n\nnumpy==2.4.6\n",
}


def test_the_list_holds_the_chosen_versions_only_and_each_thing_once() -> None:
    found = from_variables(VARIABLES)
    assert found.architecture == "arm64"
    assert [(each.name, each.version, each.repository) for each in found.packages] == [
        ("kubeadm", "1.35.8", "kubernetes"),
        ("kubelet", "1.35.8", "kubernetes"),
        ("cri-o", "1.35.6", "crio"),
    ]
    assert [file.path for file in found.files] == ["calico/3.32.1/crds.yaml"]
    assert found.images == ("quay.io/calico/node:v3.32.1", "registry.k8s.io/etcd:3.6", "registry.k8s.io/pause:3.10.1")
    assert found.distribution_packages == ("socat",)
    assert found.requirements == ("torch==2.13.0", "numpy==2.4.6")


def test_keys_are_beside_their_repository_or_where_they_say() -> None:
    kubernetes, crio = from_variables(VARIABLES).repositories
    assert (kubernetes.url, kubernetes.key_url) == (
        "https://pkgs.example/v1.35/deb/",
        "https://pkgs.example/v1.35/deb/Release.key",
    )
    assert (crio.key_url, crio.key_name) == ("https://keys.example/crio/gpgkey", "gpgkey")


def test_mirrors_stand_in_for_the_originals() -> None:
    mirrors = {
        "mirror_files": "http://m/files/",
        "mirror_images": "m:5000/all",
        "mirror_apt_crio": "http://m/crio",
        "mirror_images_insecure": True,
    }
    found = from_variables({**VARIABLES, **mirrors})
    assert found.files[0].url == "http://m/files/calico/3.32.1/crds.yaml"
    assert found.image_sources["registry.k8s.io/etcd:3.6"] == "m:5000/all/registry.k8s.io/etcd:3.6"
    crio = found.repositories[1]
    assert (crio.url, crio.key_url) == ("http://m/crio/", "http://m/crio/gpgkey")
    assert found.images_insecure
    assert (
        from_variables({**VARIABLES, "mirror_pip": "http://m/simple"}).lines()[-1]
        == "requirement numpy==2.4.6 http://m/simple"
    )
    assert not from_variables({**VARIABLES, "mirror_images_insecure": True}).images_insecure


@pytest.mark.parametrize(
    "start", ["package kubeadm=1.35.8 https://", "package socat (", "key ", "file ", "image ", "requirement torch=="]
)
def test_every_kind_has_its_lines(start: str) -> None:
    assert any(line.startswith(start) for line in from_variables(VARIABLES).lines())
