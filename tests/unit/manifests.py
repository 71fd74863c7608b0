"""The manifests in deploy/kubernetes as data: documents of a variant, their pods, and the settings of a container."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.processes import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VARIANTS = ("statefulsets", "leaderworkerset")
NAMESPACE = "meshnet"
Document = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod template and what makes pods of it. `name` is that of its first pod, `subdomain` its headless Service."""

    owner: Document
    template: Document
    name: str
    subdomain: str = ""

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def spec(self) -> Document:
        return dict(self.template["spec"])

    @property
    def container(self) -> Document:
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]


def read(path: Path) -> list[Document]:
    """The documents of a file, the caller's own to change."""
    return copy.deepcopy(_parsed(path))


@functools.cache
def _parsed(path: Path) -> list[Document]:
    return [document for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader) if document]


def resources(folder: Path) -> Iterator[Path]:
    """Files that a kustomization takes, those of other kustomizations among them."""
    for name in read(folder / "kustomization.yaml")[0]["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from resources(path)
        else:
            yield path


def documents(variant: str) -> list[Document]:
    return [document for path in resources(FOLDER / variant) for document in read(path)]


def of_kind(variant: str, kind: str) -> list[Document]:
    return [document for document in documents(variant) if document["kind"] == kind]


def pods(variant: str) -> list[Pod]:
    found = []
    for document in documents(variant):
        name, spec = document["metadata"]["name"], document.get("spec", {})
        if document["kind"] in ("Deployment", "Job"):
            found.append(Pod(document, spec["template"], f"{name}-x"))
        elif document["kind"] == "StatefulSet":
            found.append(Pod(document, spec["template"], f"{name}-0", spec["serviceName"]))
        elif document["kind"] == "LeaderWorkerSet":
            both = spec["leaderWorkerTemplate"]
            found.append(Pod(document, both["leaderTemplate"], f"{name}-0", name))
            found.append(Pod(document, both["workerTemplate"], f"{name}-0-1", name))
    return found


def settings(variant: str, pod: Pod, container: Document, secrets: dict[str, str]) -> dict[str, str]:
    """The container's environment as Kubernetes makes it; `secrets` are the values of the Secret's keys."""
    maps = {document["metadata"]["name"]: document["data"] for document in of_kind(variant, "ConfigMap")}
    fields = {"metadata.name": pod.name, "metadata.namespace": NAMESPACE}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    for entry in container.get("env", []):
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] == "meshnet"
            found[entry["name"]] = secrets[source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            found[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], entry["value"])
    return found


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()
