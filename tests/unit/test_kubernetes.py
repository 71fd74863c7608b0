"""The manifests in deploy/kubernetes: valid by Kubernetes' own schemas, and in agreement with each other and with us.

No cluster has seen them. These tests hold what can be told without one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
from django.test import Client
from django.urls import resolve

from meshsite import gunicorn_conf
from meshsite.options import OPTIONS
from nodes.amounts import parse_bytes
from nodes.joining import RESERVE_BYTES
from nodes.layer_costs import LayerCosts, read_costs
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.mesh_plan import plan_mesh
from nodes.networks import NodeNetworks, split_url
from tests.processes import ROOT
from tests.unit.manifests import FOLDER, NAMESPACE, VARIANTS, Pod, documents, of_kind, pods, read, resources, selects
from tests.unit.manifests import settings as settings_of

OPTION_NAMES = {option.name for option in OPTIONS}
#: Set for the sake of others than meshnet.
NO_OPTIONS = {"HOME", "HF_HOME", "POD_NAME", "POD_NAMESPACE"}
SECRETS = {
    "mesh-secret": "a-mesh-secret-for-this-test-only",
    "django-secret-key": "Zk3-9vQmT7xLwR2pB8nYc5hJ1dFgS6aE4uKoXiVt0yMqWz_PbN",
    "database-url": "postgres://meshnet:word@postgres.example.org/meshnet",
    "cache-url": "redis://redis.example.org:6379/0",
}
ALL_PODS = [pytest.param(variant, pod, id=f"{variant}-{pod.name}") for variant in VARIANTS for pod in pods(variant)]
SERVING = [one for one in ALL_PODS if one.values[1].component in ("head", "node")]  # type: ignore[attr-defined]
NODES = [one for one in ALL_PODS if one.values[1].component == "node"]  # type: ignore[attr-defined]
#: SmolLM2-135M-Instruct, which the manifests serve.
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def environment(variant: str, pod: Pod) -> dict[str, str]:
    return settings_of(variant, pod, pod.container, SECRETS)


def port_of(pod: Pod) -> int:
    (port,) = pod.container["ports"]
    assert port["name"] == "http"
    return int(port["containerPort"])


def size(text: str) -> int:
    return parse_bytes(text if text.endswith("B") else f"{text}B")


def test_every_manifest_belongs_to_a_variant() -> None:
    taken = {path for variant in VARIANTS for path in resources(FOLDER / variant)}
    assert taken == {path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_kubernetes_takes_every_document(variant: str) -> None:
    seen = set()
    for document in documents(variant):
        seen.add(document["kind"])
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, "1.37", strict=True)
    assert {"Deployment", "Service", "Job", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} <= seen


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_lowest_version_that_the_guide_names_takes_every_document_too(variant: str) -> None:
    named = re.search(r"You need Kubernetes (\d+\.\d+) or newer", guide())
    assert named is not None
    for document in documents(variant):
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, named[1], strict=True)


def test_an_upgrade_as_the_guide_has_it_deletes_the_job_that_cannot_be_changed_before_it_applies() -> None:
    _, _, upgrade = guide().partition("## Upgrade\n")
    deletes = upgrade.index("kubectl -n meshnet delete job meshnet-migrate --ignore-not-found")
    assert deletes < upgrade.index("kubectl apply -k deploy/kubernetes/statefulsets")
    assert {job["metadata"]["name"] for variant in VARIANTS for job in of_kind(variant, "Job")} == {"meshnet-migrate"}


def test_a_field_that_does_not_exist_is_noticed() -> None:
    (deployment,) = of_kind("statefulsets", "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readyProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readyProbe"):
        kubernetes_validate.validate(deployment, "1.37", strict=True)


def test_the_leader_worker_set_is_as_its_api_documents_it() -> None:
    (found,) = of_kind("leaderworkerset", "LeaderWorkerSet")
    schema = json.loads((Path(__file__).parent / "leaderworkerset.schema.json").read_text())
    jsonschema.validate(found, schema)
    for name in ("leaderTemplate", "workerTemplate"):
        template = found["spec"]["leaderWorkerTemplate"][name]
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
        kubernetes_validate.validate(pod, "1.37", strict=True)
    found["spec"]["leaderWorkerTemplate"]["restartpolicy"] = "None"
    with pytest.raises(jsonschema.ValidationError, match="restartpolicy"):
        jsonschema.validate(found, schema)


@pytest.mark.parametrize(("variant", "pod"), ALL_PODS)
def test_every_variable_is_a_setting(variant: str, pod: Pod) -> None:
    for container in [*pod.spec.get("initContainers", []), pod.container]:
        assert set(settings_of(variant, pod, container, SECRETS)) <= OPTION_NAMES | NO_OPTIONS


def test_the_secret_that_is_documented_has_exactly_the_keys_that_are_read() -> None:
    text = json.dumps([documents(variant) for variant in VARIANTS])
    read_keys = set(re.findall(r'"secretKeyRef": \{"name": "meshnet", "key": "([\w-]+)"\}', text))
    command = re.search(r"kubectl .*create secret generic meshnet .*?\n```", guide(), re.DOTALL)
    assert command is not None
    assert set(re.findall(r"--from-(?:literal|file)=([\w-]+)=", command[0])) == read_keys == set(SECRETS)
    assert not [document for variant in VARIANTS for document in of_kind(variant, "Secret")]


def guide() -> str:
    return (ROOT / "docs" / "kubernetes.md").read_text()


CHECK = """
import django, os
django.setup()
from django.core.checks import run_checks
from meshsite.checks import problems_before_serving
print([str(found) for found in run_checks()] + problems_before_serving())
"""


@pytest.mark.parametrize(("variant", "pod"), SERVING[:2])
def test_the_settings_pass_the_system_checks(variant: str, pod: Pod, tmp_path: Path) -> None:
    environ = {**environment(variant, pod), "MESHNET_VAR_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHECK],
        cwd=ROOT,
        env={**environ, "DJANGO_SETTINGS_MODULE": "meshsite.settings", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(("variant", "pod"), SERVING)
def test_a_pod_starts_its_roles_server_on_the_port_that_it_names(variant: str, pod: Pod) -> None:
    environ = environment(variant, pod)
    role = environ["MESHNET_ROLE"]
    assert role == pod.component
    assert pod.container["command"] == ["gunicorn", "-c", f"meshsite/gunicorn_{role}.py", "meshsite.wsgi"]
    assert (ROOT / pod.container["command"][2]).exists()
    assert environ["MESHNET_BIND"] == f"0.0.0.0:{port_of(pod)}"


@pytest.mark.parametrize(("variant", "pod"), SERVING)
def test_probes_ask_paths_of_the_role_at_its_port(variant: str, pod: Pod) -> None:
    asked = {kind: pod.container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: get["path"] for kind, get in asked.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    for get in asked.values():
        assert get["port"] == "http"
        resolve(get["path"], urlconf=f"meshsite.urls_{pod.component}")
    startup = pod.container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600  # torch, the model, its proof


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_head_answers_probes_by_address(path: str, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["mesh.example.org"]
    # A pod's address is no name that clients use. 400 would be the host check, 503 is a head that is not running.
    assert Client().get(path, headers={"host": "10.244.1.7:8000"}).status_code in (200, 503)
    assert Client().get("/admin/login/", headers={"host": "10.244.1.7:8000"}).status_code == 400


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_find_pods_and_services_their_port(variant: str) -> None:
    serving = [pod for pod in pods(variant) if pod.component in ("head", "node")]
    for service in of_kind(variant, "Service"):
        found = [pod for pod in serving if selects(service["spec"]["selector"], pod.labels)]
        assert found, service["metadata"]["name"]
        (port,) = service["spec"]["ports"]
        assert {port["port"]} == {port_of(pod) for pod in found} and port["targetPort"] == "http"
    for budget in of_kind(variant, "PodDisruptionBudget"):
        (found,) = [pod for pod in serving if selects(budget["spec"]["selector"]["matchLabels"], pod.labels)]
        assert budget["spec"]["minAvailable"] < found.owner["spec"]["replicas"]
    assert len(of_kind(variant, "PodDisruptionBudget")) == len(serving)
    for kind in ("Deployment", "StatefulSet"):
        for owner in of_kind(variant, kind):
            assert selects(owner["spec"]["selector"]["matchLabels"], owner["spec"]["template"]["metadata"]["labels"])
    for pod in serving:
        (spread,) = pod.spec["topologySpreadConstraints"]
        assert selects(spread["labelSelector"]["matchLabels"], pod.labels)


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_heads_and_nodes_reach_nodes(variant: str) -> None:
    (policy,) = of_kind(variant, "NetworkPolicy")
    guarded = policy["spec"]["podSelector"]["matchLabels"]
    assert {pod.component for pod in pods(variant) if selects(guarded, pod.labels)} == {"node"}
    (rule,) = policy["spec"]["ingress"]
    allowed = [one["podSelector"]["matchLabels"] for one in rule["from"]]
    let_in = {pod.component for pod in pods(variant) for one in allowed if selects(one, pod.labels)}
    assert let_in == {"head", "node"}
    assert [port["port"] for port in rule["ports"]] == ["http"]


@pytest.mark.parametrize(("variant", "pod"), NODES)
def test_a_node_announces_a_name_that_its_headless_service_gives_it(variant: str, pod: Pod) -> None:
    environ = environment(variant, pod)
    scheme, host, port = split_url(environ["MESHNET_URL"])
    assert (scheme, host, port) == ("http", f"{pod.name}.{pod.subdomain}.{NAMESPACE}.svc", port_of(pod))
    if pod.owner["kind"] == "StatefulSet":
        (service,) = [one for one in of_kind(variant, "Service") if one["metadata"]["name"] == pod.subdomain]
        assert service["spec"]["clusterIP"] == "None"
        # One that drains is not ready, and its running sessions must still be found.
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert selects(service["spec"]["selector"], pod.labels)
    networks = NodeNetworks(environ["MESHNET_NODE_NETWORKS"].split(","), plain_http=True)
    networks.check(environ["MESHNET_URL"])
    networks.check("http://10.244.1.7:8001")
    assert environ["MESHNET_PLAIN_HTTP"] == "true"


@pytest.mark.parametrize(("variant", "pod"), NODES)
def test_a_node_finds_heads_that_are_not_ready_yet(variant: str, pod: Pod) -> None:
    # A head without nodes is not ready, and a Service of ready heads alone would keep nodes away for ever.
    url = urlsplit(environment(variant, pod)["MESHNET_HEADS"])
    (service,) = [one for one in of_kind(variant, "Service") if one["metadata"]["name"] == url.hostname]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "head"
    assert service["spec"]["ports"][0]["port"] == url.port


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> LayerCosts:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return read_costs(folder, "float32", 8192, allow_untested=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_stages_are_the_split_of_a_plan_and_ask_for_its_memory(variant: str, costs: LayerCosts) -> None:
    nodes = [pod for pod in pods(variant) if pod.component == "node"]
    environ = environment(variant, nodes[0])
    plan = plan_mesh(
        costs,
        [Machine(name, 12 * 2**30, 19e9, cpus=2) for name in "ab"],
        shards=len(nodes),
        layers=None,
        replicas=1,
        reserve_bytes=RESERVE_BYTES,
        max_sessions=int(environ["MESHNET_KV_MAX_SESSIONS"]),
        max_cache_bytes=2 * 2**30,
    )
    for pod, stage in zip(nodes, plan.stages, strict=True):
        assert LayerRange.parse(environment(variant, pod)["MESHNET_LAYERS"]) == stage.layers
        asked = pod.container["resources"]
        assert 1.0 <= size(asked["requests"]["memory"]) / stage.memory_bytes < 1.05
        assert asked["limits"] == {"memory": asked["requests"]["memory"]}


@pytest.mark.parametrize(("variant", "pod"), NODES)
def test_a_node_computes_with_the_cores_that_it_asks_for(variant: str, pod: Pod) -> None:
    assert environment(variant, pod)["MESHNET_THREADS"] == pod.container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize(("variant", "pod"), SERVING)
def test_a_stop_may_take_the_time_that_it_needs(variant: str, pod: Pod) -> None:
    waits = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod.spec["terminationGracePeriodSeconds"] > waits + gunicorn_conf.GRACEFUL_SECONDS + 5


@pytest.mark.parametrize(("variant", "pod"), ALL_PODS)
def test_no_pod_may_more_than_it_needs(variant: str, pod: Pod) -> None:
    assert pod.spec["securityContext"]["runAsNonRoot"] is True
    assert pod.spec["securityContext"]["runAsUser"] == 10001
    assert pod.spec["automountServiceAccountToken"] is False
    for container in [*pod.spec.get("initContainers", []), pod.container]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        written = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert written == {settings_of(variant, pod, container, SECRETS)["MESHNET_VAR_DIR"], "/tmp"}  # noqa: S108
        assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod.spec["volumes"]}


def test_the_image_holds_what_the_manifests_start() -> None:
    text = (FOLDER / "Containerfile").read_text()
    copied = set(re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE))
    assert copied == {"requirements.txt", "manage.py LICENSE", "meshsite", "nodes", "generation"}
    assert all((ROOT / name).exists() for names in copied for name in names.split())
    model = {environment(variant, pod)["MESHNET_MODEL"] for variant in VARIANTS for pod in pods(variant)}
    folder = re.search(r"MESHNET_VAR_DIR=(\S+) python manage.py fetch_model (\S+)", text)
    assert folder is not None and model == {f"{folder[1]}/models/{folder[2]}"}
    assert "USER 10001:10001" in text


def test_all_kustomizations_take_the_same_image_into_the_same_namespace() -> None:
    found: list[dict[str, Any]] = [read(path)[0] for path in FOLDER.rglob("kustomization.yaml")]
    assert len(found) == 3
    assert {one["namespace"] for one in found} == {NAMESPACE}
    assert all(one["images"] == found[0]["images"] for one in found)
    assert found[0]["images"][0]["name"] == "meshnet"


def test_the_guide_says_that_no_cluster_has_seen_them() -> None:
    assert "has not been tried on a real cluster" in " ".join(guide().split())
