"""Fetching from real servers on loopback: a flat apt repository, plain files, a registry that wants tokens."""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.node import download
from harness.node.download import FetchError, fetch_file
from harness.node.fetch import choose, fetch_all, release_sums
from harness.node.oci import ImageFolder
from harness.node.offline import OfflineList, Package, RemoteFile, Repository

pytestmark = pytest.mark.integration

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Upstream:
    """A server of prepared answers: path -> body, with every request written down."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.tokens: set[str] = set()  # empty: no token wanted
        self.cut: dict[str, int] = {}  # path -> how many times the answer breaks off
        self.failures: dict[str, int] = {}  # path -> how many times it answers 503
        self.requests: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                given = self.headers.get("Authorization", "")
                upstream.requests.append((self.path, given))
                if path == "/token":
                    self._answer(200, json.dumps({"token": "fresh"}).encode())
                elif (
                    path.startswith("/v2/") and upstream.tokens and given.removeprefix("Bearer ") not in upstream.tokens
                ):
                    challenge = f'Bearer realm="{upstream.url}/token",service="here",scope="pull"'
                    self._answer(401, b"", {"WWW-Authenticate": challenge})
                elif upstream.failures.get(path, 0) > 0:
                    upstream.failures[path] -= 1
                    self._answer(503, b"busy")
                elif path in upstream.bodies:
                    self._answer(200, upstream.bodies[path])
                else:
                    self._answer(404, b"")

            def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                path = self.path.partition("?")[0]
                self.send_response(status)
                self.send_header("Content-Type", upstream.types.get(path, "application/octet-stream"))
                self.send_header("Content-Length", str(len(body)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                if upstream.cut.get(path, 0) > 0:
                    upstream.cut[path] -= 1
                    body = body[: len(body) // 2]
                self.wfile.write(body)

        return Handler


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    monkeypatch.setattr(download, "_PAUSE_S", 0.01)
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


def test_a_package_that_was_tampered_with_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    repository = serve_repository(upstream)
    upstream.bodies["/deb/amd64/kubeadm_1.35.8-1.10.deb"] = b"something else"
    with pytest.raises(FetchError, match="has the SHA-256"):
        fetch_all(wanted(repository), tmp_path, say=lambda _: None)
    assert not list(tmp_path.rglob("*.deb"))
    assert not list(tmp_path.rglob(".*kubeadm*"))
    assert not (tmp_path / "apt" / "kubernetes" / "Release").exists()


def test_an_index_that_was_tampered_with_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    repository = serve_repository(upstream)
    upstream.bodies["/deb/Packages"] += b"\n"
    with pytest.raises(FetchError, match="Packages has the SHA-256"):
        fetch_all(wanted(repository), tmp_path, say=lambda _: None)


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
    assert [path for path, _ in upstream.requests] == ["/crds.yaml"]
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
    with pytest.raises(FetchError, match="no http address"):
        fetch_file("file:///etc/passwd", tmp_path / "file", "0")


@pytest.mark.usefixtures("upstream")
def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"/file could not be reached: Connection refused\. Check"):
        fetch_file("http://127.0.0.1:9/file", tmp_path / "file", "0")


def serve_image(upstream: Upstream, name: str, tag: str, layers: list[bytes]) -> bytes:
    """An image for two architectures; the manifest of ours."""
    config = json.dumps({"architecture": "amd64", "name": name}).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"digest": digest(config), "size": len(config)},
            "layers": [{"digest": digest(layer), "size": len(layer)} for layer in layers],
        }
    ).encode()
    platforms = [("arm64", "sha256:" + "0" * 64), ("amd64", digest(manifest))]
    index = {"manifests": [{"digest": d, "platform": {"os": "linux", "architecture": a}} for a, d in platforms]}
    base = f"/v2/{name}"
    bodies = {f"manifests/{tag}": json.dumps(index).encode(), f"manifests/{digest(manifest)}": manifest}
    bodies |= {f"blobs/{digest(blob)}": blob for blob in (config, *layers)}
    upstream.bodies.update({f"{base}/{path}": body for path, body in bodies.items()})
    upstream.types.update({f"{base}/manifests/{tag}": INDEX, f"{base}/manifests/{digest(manifest)}": MANIFEST})
    return manifest


def layout(folder: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return index


def test_images_share_blobs_in_one_layout(upstream: Upstream, tmp_path: Path) -> None:
    shared = b"base layer"
    manifest = serve_image(upstream, "calico/node", "v3", [shared, b"node"])
    serve_image(upstream, "calico/cni", "v3", [shared, b"cni"])
    images = ImageFolder(tmp_path / "images", insecure=True)
    said: list[str] = []
    for name in ("calico/node", "calico/cni"):
        images.fetch(f"{upstream.host}/{name}:v3", f"quay.io/{name}:v3", said.append)
    assert said == [
        "image quay.io/calico/node:v3: 3 of 3 blobs fetched",
        "image quay.io/calico/cni:v3: 2 of 3 blobs fetched",
    ]
    assert images.images == ["quay.io/calico/cni:v3", "quay.io/calico/node:v3"]
    entries = {
        entry["annotations"]["org.opencontainers.image.ref.name"]: entry
        for entry in layout(tmp_path / "images")["manifests"]
    }
    assert entries["quay.io/calico/node:v3"]["digest"] == digest(manifest)
    for path in (tmp_path / "images" / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert json.loads((tmp_path / "images" / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}


def test_a_fetch_goes_on_where_it_was(upstream: Upstream, tmp_path: Path) -> None:
    serve_image(upstream, "pause", "3", [b"layer"])
    for _ in range(2):
        ImageFolder(tmp_path, insecure=True).fetch(
            f"{upstream.host}/pause:3", "registry.k8s.io/pause:3", lambda _: None
        )
    assert len([path for path, _ in upstream.requests if "/blobs/" in path]) == 2
    assert ImageFolder(tmp_path).images == ["registry.k8s.io/pause:3"]


def test_a_registry_that_wants_a_token_gets_one_and_a_new_one_when_it_expires(
    upstream: Upstream, tmp_path: Path
) -> None:
    serve_image(upstream, "pause", "3", [b"layer"])
    upstream.tokens = {"fresh"}
    ImageFolder(tmp_path, insecure=True).fetch(f"{upstream.host}/pause:3", "pause", lambda _: None)
    assert ("/token?service=here&scope=pull", "") in upstream.requests
    assert all(token == "Bearer fresh" for path, token in upstream.requests if "/blobs/" in path)


def test_a_registry_that_refuses_is_told(upstream: Upstream, tmp_path: Path) -> None:
    serve_image(upstream, "pause", "3", [b"layer"])
    upstream.tokens = {"never given"}
    with pytest.raises(FetchError, match="answered 401"):
        ImageFolder(tmp_path, insecure=True).fetch(f"{upstream.host}/pause:3", "pause", lambda _: None)


def test_a_blob_with_another_digest_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    serve_image(upstream, "pause", "3", [b"layer"])
    upstream.bodies[f"/v2/pause/blobs/{digest(b'layer')}"] = b"evil"
    images = ImageFolder(tmp_path, insecure=True)
    with pytest.raises(FetchError, match="has the SHA-256"):
        images.fetch(f"{upstream.host}/pause:3", "pause", lambda _: None)
    assert images.images == []


def test_a_manifest_with_another_digest_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    manifest = serve_image(upstream, "pause", "3", [b"layer"])
    upstream.bodies[f"/v2/pause/manifests/{digest(manifest)}"] = manifest + b" "
    with pytest.raises(FetchError, match="has the digest"):
        ImageFolder(tmp_path, insecure=True).fetch(f"{upstream.host}/pause:3", "pause", lambda _: None)


def test_an_image_without_our_platform_is_told(upstream: Upstream, tmp_path: Path) -> None:
    serve_image(upstream, "pause", "3", [b"layer"])
    images = ImageFolder(tmp_path, architecture="riscv64", insecure=True)
    with pytest.raises(FetchError, match="no variant for linux/riscv64"):
        images.fetch(f"{upstream.host}/pause:3", "pause", lambda _: None)


def test_a_digest_that_is_a_path_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    body = json.dumps({"config": {"digest": "sha256:../../x"}, "layers": []}).encode()
    upstream.bodies["/v2/pause/manifests/3"] = body
    upstream.types["/v2/pause/manifests/3"] = MANIFEST
    with pytest.raises(FetchError, match="no SHA-256 digest"):
        ImageFolder(tmp_path, insecure=True).fetch(f"{upstream.host}/pause:3", "pause", lambda _: None)


@pytest.mark.parametrize("name", ["pause", "registry.k8s.io/", "a/b:c:d"])
def test_a_short_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchError, match="no full image name"):
        ImageFolder(tmp_path).fetch(name, name, lambda _: None)
