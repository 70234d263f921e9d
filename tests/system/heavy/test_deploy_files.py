"""deploy/ before the genuine tools that will read it: Docker Compose, promtool, kubectl and Kubernetes' own schemas."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment import DEPLOY, documents, installed
from serving import ROOT

pytestmark = pytest.mark.heavy

TOOLS = ROOT / ".venv-heavy/bin"
PROFILES = ("cpu", "gpu", "observability", "migrate", "tls", "tls-haproxy")


def told(*command: str | Path, folder: Path = DEPLOY, **environment: str) -> str:
    """What a tool prints; the test fails with its complaint."""
    if isinstance(command[0], Path) and not command[0].exists():
        pytest.fail(f"{command[0].name} is not there: say `make test-system`", pytrace=False)
    surroundings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", **environment}
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("profile", PROFILES)
def test_docker_compose_accepts_every_profile(profile: str) -> None:
    config = json.loads(told(TOOLS / "docker-compose", "config", "--format=json", COMPOSE_PROFILES=profile))
    written = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(config["services"]) == {name for name, each in written.items() if profile in each["profiles"]}


def test_docker_compose_accepts_all_profiles_at_once_and_starts_the_gateway_by_default() -> None:
    everything = told(TOOLS / "docker-compose", "config", "--services", COMPOSE_PROFILES=",".join(PROFILES))
    assert len(everything.split()) == len(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"])
    assert told(TOOLS / "docker-compose", "config", "--services").split() == ["tensorgate"]
    from_above = told(TOOLS / "docker-compose", "-f", "deploy/compose.yaml", "config", "--services", folder=ROOT)
    assert from_above.split() == ["tensorgate"]


def test_promtool_accepts_configuration_rules_and_alerts() -> None:
    promtool = installed("promtool", "prometheus")
    told(promtool, "check", "config", "prometheus.yml", folder=DEPLOY / "prometheus")
    told(promtool, "test", "rules", "alerts.test.yml", folder=DEPLOY / "prometheus")


@pytest.mark.parametrize("folder", [".", "monitoring", "autoscaling", "keda", "kserve"])
def test_kustomizations_can_be_built(folder: str) -> None:
    built = told(installed("kubectl", "kubernetes-client"), "kustomize", ".", folder=DEPLOY / "kubernetes" / folder)
    images = [line.strip() for line in built.splitlines() if line.strip(" -").startswith("image:")]
    assert {image.strip("- ") for image in images} <= {"image: tensorgate:0.1.0", "image: tensorgate-tensorflow:0.1.0"}
    assert list(yaml.safe_load_all(built))


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"])
def test_kubernetes_schemas_accept_its_own_kinds(kind: str) -> None:
    files = [
        file
        for file in (DEPLOY / "kubernetes").rglob("*.yaml")
        if any(each.get("kind") == kind for each in documents(file))
    ]
    assert files
    for version in ("1.28.0", "1.35.0"):
        told(TOOLS / "kubernetes-validate", "--strict", "-k", version, *files)


# --------------------------------------------------------------------------------------------------------- the chart

OURS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "checksum/config")
DRAWN = {
    "plain": (),
    "hpa": ("autoscaling.enabled=true",),
    "keda": ("autoscaling.enabled=true", "autoscaling.kind=keda"),
    "gpu": (
        "gpus=2",
        "image.tag=0.1.0-cuda12",
        "models.persistentVolumeClaim.claimName=models",
    ),
    "watched": ("serviceMonitor.enabled=true", "reload=true", "service.type=LoadBalancer", "service.oldPorts=false"),
}


def drawn(*values: str, release: str = "tensorgate") -> dict[str, Any]:
    """Kind -> the object that the chart gives with these values."""
    words = [word for value in values for word in ("--set", value)]
    text = told(TOOLS / "helm", "template", release, "helm", *words)
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


def without_labels(tree: Any) -> Any:
    """What is left without labels that charts and kustomizations put everywhere, and names that tell a content."""
    if isinstance(tree, dict):
        kept = {key: without_labels(value) for key, value in tree.items() if key not in OURS}
        return {key: value for key, value in kept.items() if value not in ({}, None)}
    if isinstance(tree, list):
        return [without_labels(each) for each in tree]
    return re.sub(r"^tensorgate-[a-z0-9]{10}$", "tensorgate", tree) if isinstance(tree, str) else tree


def test_the_chart_says_what_the_kustomization_says() -> None:
    built = told(installed("kubectl", "kubernetes-client"), "kustomize", ".", folder=DEPLOY / "kubernetes")
    plain = {each["kind"]: without_labels(each) for each in yaml.safe_load_all(built)}
    chart = {kind: without_labels(each) for kind, each in drawn().items()}
    container = chart["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert (container.pop("imagePullPolicy"), chart["Service"]["spec"].pop("type")) == ("IfNotPresent", "ClusterIP")
    assert chart == plain


@pytest.mark.parametrize("values", DRAWN.values(), ids=DRAWN)
def test_what_the_chart_gives_fits_kubernetes(values: tuple[str, ...], tmp_path: Path) -> None:
    told(TOOLS / "helm", "lint", "--strict", "helm", *(word for value in values for word in ("--set", value)))
    for kind, each in drawn(*values, release="blue").items():
        assert each["metadata"]["name"] == "blue-tensorgate"
        if kind not in ("ScaledObject", "ServiceMonitor"):  # which are no kinds of Kubernetes' own
            (tmp_path / f"{kind}.yaml").write_text(yaml.safe_dump(each))
            told(TOOLS / "kubernetes-validate", "--strict", "-k", "1.35.0", tmp_path / f"{kind}.yaml")


def test_the_chart_scales_by_keda_as_the_kustomization_does() -> None:
    (plain,) = documents(DEPLOY / "kubernetes/keda/scaled-object.yaml")
    chart = without_labels(drawn(*DRAWN["keda"])["ScaledObject"])
    (trigger,) = chart["spec"]["triggers"]
    trigger["metadata"]["query"] = trigger["metadata"]["query"].replace('namespace="default",', "")
    assert chart == plain


def test_a_configuration_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("models: {}  # {{ no template }}\n")
    text = told(TOOLS / "helm", "template", "x", "helm", "--set-file", f"config={tmp_path / 'gateway.yaml'}")
    (config,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap"]
    assert config["data"]["gateway.yaml"] == (tmp_path / "gateway.yaml").read_text()
    refused = subprocess.run(
        [TOOLS / "helm", "template", "x", "helm", "--set", "replcas=3"], cwd=DEPLOY, capture_output=True
    )
    assert b"replcas" in refused.stderr
