"""Fetching from real servers on loopback: a flat apt repository, plain files; images by a stand-in of skopeo."""

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.node import offline
from harness.node.offline import (
    FetchError,
    OfflineList,
    Package,
    RemoteFile,
    Repository,
    choose,
    fetch_all,
    fetch_file,
    release_sums,
)
from tests.support.http_double import Answering, Double


class Upstream:
    """A server of prepared answers: path -> body, with every request written down."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}  # path -> how many times the answer breaks off
        self.failures: dict[str, int] = {}  # path -> how many times it answers 503
        self.requests: list[str] = []
        self._server = Double(_Handler)
        self._server.upstream = self
        self.host, self.url = f"127.0.0.1:{self._server.port}", self._server.url
        self._server.__enter__()

    def close(self) -> None:
        self._server.__exit__()


class _Handler(Answering):
    def reply(self) -> None:
        upstream, path = self.server.upstream, self.path.partition("?")[0]
        upstream.requests.append(path)
        if upstream.failures.get(path, 0) > 0:
            upstream.failures[path] -= 1
            self.answer(503, b"busy")
        elif upstream.cut.get(path, 0) > 0:
            upstream.cut[path] -= 1
            body = upstream.bodies[path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif path in upstream.bodies:
            self.answer(200, upstream.bodies[path])
        else:
            self.answer(404)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    monkeypatch.setattr(offline, "_PAUSE_S", 0.01)
    monkeypatch.delenv("http_proxy", raising=False)
    server = Upstream()
    yield server
    server.close()


PACKAGE = Package("kubeadm", "1.35.8", "kubernetes")


def serve_repository(upstream: Upstream, *, deb: bytes = b"deb of kubeadm", signed: bool = True) -> Repository:
    stanzas = [
        f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nDescription: x\n Version: 9\n"
        f"Filename: ./{architecture}/{name}_{version}.deb\nSHA256: {hashlib.sha256(deb).hexdigest()}\n"
        for name, version, architecture in [
            ("kubeadm", "1.35.8-1.9", "amd64"),
            ("kubeadm", "1.35.8-1.10", "amd64"),
            ("kubeadm", "1.35.80-1.1", "amd64"),
            ("kubeadm", "1.35.8-9.9", "arm64"),
            ("kubelet", "1.35.9-1.1", "amd64"),
        ]
    ]
    packages = "\n".join(stanzas).encode()
    indexes = {"Packages": packages, "Packages.gz": gzip.compress(packages)}
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} ./{name}\n" for name, data in indexes.items())
    release = f"Origin: test\nMD5Sum:\n 0 0 Packages\nSHA256:\n{sums}".encode()
    files = {**indexes, "Release": release, "Release.key": b"key", "amd64/kubeadm_1.35.8-1.10.deb": deb}
    if signed:
        files["Release.gpg"] = b"signature"
    upstream.bodies.update({f"/deb/{name}": data for name, data in files.items()})
    return Repository("kubernetes", f"{upstream.url}/deb/", f"{upstream.url}/deb/Release.key", "Release.key", "ABC")


def wanted(repository: Repository, **changes: Any) -> OfflineList:
    everything = OfflineList((repository,), (PACKAGE,), ("socat",), (), (), {}, images_insecure=True)
    return replace(everything, **changes)


def test_a_repository_becomes_a_signed_flat_mirror(upstream: Upstream, tmp_path: Path) -> None:
    said: list[str] = []
    repository = serve_repository(upstream)
    fetch_all(wanted(repository), tmp_path, say=said.append)
    folder = tmp_path / "apt" / "kubernetes"
    assert (folder / "amd64" / "kubeadm_1.35.8-1.10.deb").read_bytes() == b"deb of kubeadm"
    assert (folder / "Release.gpg").read_bytes() == b"signature"
    assert {path.name for path in folder.iterdir()} == {
        "Release", "Release.gpg", "Release.key", "Packages", "Packages.gz", "amd64",
    }  # fmt: skip
    assert said == ["package kubeadm=1.35.8-1.10: fetched"]
    assert "mirror_apt_kubernetes: http://MIRROR/apt/kubernetes/" in (tmp_path / "mirrors.yml").read_text()
    said.clear()
    fetch_all(wanted(repository), tmp_path, say=said.append)
    assert said == ["package kubeadm=1.35.8-1.10: was there"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("amd64/kubeadm_1.35.8-1.10.deb", "has the SHA-256"), ("Packages", "Packages has the SHA-256")],
    ids=["package", "index"],
)
def test_what_was_tampered_with_is_refused(upstream: Upstream, tmp_path: Path, name: str, said: str) -> None:
    repository = serve_repository(upstream)
    upstream.bodies[f"/deb/{name}"] += b"\n"
    with pytest.raises(FetchError, match=said):
        fetch_all(wanted(repository), tmp_path, say=lambda _: None)
    assert not [*tmp_path.rglob("*.deb"), *tmp_path.rglob(".*kubeadm*")]
    assert not (tmp_path / "apt" / "kubernetes" / "Release").exists()


def test_an_unsigned_repository_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="not signed"):
        fetch_all(wanted(serve_repository(upstream, signed=False)), tmp_path, say=lambda _: None)


def test_a_version_that_does_not_exist_names_those_that_do(upstream: Upstream, tmp_path: Path) -> None:
    package = Package("kubelet", "1.35.8", "kubernetes")
    with pytest.raises(FetchError, match=r"no kubelet 1.35.8 for amd64; it has 1.35.9-1.1") as caught:
        fetch_all(wanted(serve_repository(upstream), packages=(package,)), tmp_path, say=lambda _: None)
    assert "versions.yml" in caught.value.advice


def test_a_filename_outside_its_repository_is_refused() -> None:
    index = "Package: kubeadm\nVersion: 1.35.8-1\nArchitecture: all\nFilename: ../../etc/passwd\nSHA256: 0\n"
    with pytest.raises(FetchError, match="points out of"):
        choose(index, PACKAGE, "amd64")


def test_the_package_is_the_one_for_the_architecture() -> None:
    name = "Package: kubeadm\nVersion: {}\nArchitecture: {}\nFilename: {}.deb\nSHA256: 0\n".format
    index = "\n".join(name(f"{PACKAGE.version}-1", each, each) for each in ("amd64", "arm64"))
    assert [choose(index, PACKAGE, each)["Filename"] for each in ("amd64", "arm64")] == ["amd64.deb", "arm64.deb"]


def test_sums_come_from_the_sha256_section_only() -> None:
    assert release_sums("MD5Sum:\n a 1 Packages\nSHA256:\n b 1 ./Packages\n c 2 main/x\n") == {
        "Packages": "b",
        "main/x": "c",
    }


def test_files_are_checked_and_kept(upstream: Upstream, tmp_path: Path) -> None:
    upstream.bodies["/crds.yaml"] = b"kind: X\n"
    file = RemoteFile("calico/3/crds.yaml", f"{upstream.url}/crds.yaml", hashlib.sha256(b"kind: X\n").hexdigest())
    everything = wanted(serve_repository(upstream), repositories=(), packages=(), files=(file,))
    said: list[str] = []
    for _ in range(2):
        fetch_all(everything, tmp_path, say=said.append)
    assert said == ["file calico/3/crds.yaml: fetched", "file calico/3/crds.yaml: was there"]
    assert upstream.requests == ["/crds.yaml"]
    (tmp_path / "files" / "calico" / "3" / "crds.yaml").write_text("changed")
    fetch_all(everything, tmp_path, say=said.append)
    assert said[-1] == "file calico/3/crds.yaml: fetched"


@pytest.mark.parametrize("way", ["cut", "failures"])
def test_what_breaks_off_twice_is_tried_again(upstream: Upstream, tmp_path: Path, way: str) -> None:
    body = b"x" * 100_000
    upstream.bodies["/file"] = body
    getattr(upstream, way)["/file"] = 2
    assert fetch_file(f"{upstream.url}/file", tmp_path / "file", hashlib.sha256(body).hexdigest())
    assert (tmp_path / "file").read_bytes() == body


def test_what_stays_cut_off_is_an_error_and_leaves_nothing(upstream: Upstream, tmp_path: Path) -> None:
    upstream.bodies["/file"] = b"x" * 1000
    upstream.cut["/file"] = 99
    with pytest.raises(FetchError):
        fetch_file(f"{upstream.url}/file", tmp_path / "file", hashlib.sha256(b"x" * 1000).hexdigest())
    assert list(tmp_path.iterdir()) == []
    assert len(upstream.requests) == 3


def test_what_is_not_there_is_not_asked_for_again(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="answered 404") as caught:
        fetch_file(f"{upstream.url}/none", tmp_path / "file", "0")
    assert "mirror" in caught.value.advice
    assert len(upstream.requests) == 1


def test_only_http_is_spoken(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="not an http address"):
        fetch_file("file:///etc/passwd", tmp_path / "file", "0")


@pytest.mark.usefixtures("upstream")
def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"/file could not be reached: Connection refused\. Check"):
        fetch_file("http://127.0.0.1:9/file", tmp_path / "file", "0")


ARGUMENTS = "arguments"
SKOPEO = f"""\
#!{sys.executable}
import hashlib, json, os, pathlib, sys
*options, source, target = sys.argv[1:]
folder, image = target.removeprefix("oci:").split(":", 1)
folder = pathlib.Path(folder)
(folder / "{ARGUMENTS}").write_text(json.dumps([*options, source]))
if "refused" in source:
    sys.exit("time=now level=fatal msg=unauthorized")
blobs = folder / "blobs" / "sha256"
blobs.mkdir(parents=True, exist_ok=True)
def put(data):
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {{"digest": "sha256:" + digest}}
layer = put(image.encode())
manifest = put(json.dumps({{"config": put(b"{{}}"), "layers": [layer]}}).encode())
if "evil" in source:
    (blobs / layer["digest"][7:]).write_bytes(b"something else")
entry = manifest | {{"annotations": {{"org.opencontainers.image.ref.name": image}}}}
(folder / "index.json").write_text(json.dumps({{"manifests": [entry]}}))
"""


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes the layout that skopeo writes, without a registry."""
    program = tmp_path / "bin" / "skopeo"
    program.parent.mkdir()
    program.write_text(SKOPEO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def images(source: str, **changes: Any) -> OfflineList:
    image = "quay.io/calico/node:v3"
    everything = OfflineList((), (), (), (), (image,), {image: source}, architecture="arm64")
    return replace(everything, **changes)


@pytest.mark.usefixtures("skopeo")
@pytest.mark.parametrize("insecure", [False, True])
def test_skopeo_is_asked_for_our_platform_from_the_mirror(tmp_path: Path, insecure: bool) -> None:
    said: list[str] = []
    fetch_all(images("mirror/calico/node:v3", images_insecure=insecure), tmp_path / "out", say=said.append)
    words = json.loads((tmp_path / "out" / "images" / ARGUMENTS).read_text())
    assert words[-1] == "docker://mirror/calico/node:v3"
    assert words[words.index("--override-arch") + 1] == "arm64"
    assert ("--src-tls-verify=false" in words) is insecure
    assert said == ["image quay.io/calico/node:v3: fetched and checked"]


@pytest.mark.usefixtures("skopeo")
@pytest.mark.parametrize(("source", "said"), [("refused/x:1", "unauthorized"), ("evil/x:1", "has the SHA-256")])
def test_an_image_that_is_refused_or_not_what_its_digest_says(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(FetchError, match=said):
        fetch_all(images(source), tmp_path / "out", say=lambda _: None)
    for blob in (tmp_path / "out").rglob("blobs/sha256/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def test_without_skopeo_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        fetch_all(images("quay.io/x:1"), tmp_path / "out", say=lambda _: None)
    assert refused.value.advice.startswith("apt-get install skopeo")
    assert not (tmp_path / "out").exists()
