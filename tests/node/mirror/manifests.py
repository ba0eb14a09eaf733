"""Files that stand in for the manifests of other projects: the kinds they define and the programs they start."""

from pathlib import Path
from typing import Any

import yaml

OPERATOR_KINDS = (("Installation", "installations"), ("APIServer", "apiservers"), ("TigeraStatus", "tigerastatuses"))
# Fields are not named here; the API server wants a schema all the same.
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def write(folder: Path, table: dict[str, Any]) -> None:
    """Write every file of the table of versions below a folder, where `mirror_files` looks for it."""
    for version, row in table["versions_calico"].items():
        target = folder / "calico" / version
        target.mkdir(parents=True)
        contents = {"operator-crds.yaml": operator_definitions(), "tigera-operator.yaml": operator(row["images"])}
        for file in row["files"]:
            (target / file["name"]).write_text(yaml.safe_dump_all(contents[file["name"]]))


def operator_definitions() -> list[dict[str, Any]]:
    """Definitions of the operator's kinds."""
    group = "operator.tigera.io"
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Cluster",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}],
            },
        }
        for kind, plural in OPERATOR_KINDS
    ]


def operator(images: dict[str, str]) -> list[dict[str, Any]]:
    """The operator: its namespace and its Deployment."""
    labels = {"k8s-app": "tigera-operator"}
    container = {"name": "tigera-operator", "image": images["operator"]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tigera-operator"}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "tigera-operator", "namespace": "tigera-operator"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
    ]
