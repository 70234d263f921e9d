"""deploy/ before the genuine tools that will read it: Docker Compose, promtool, kubectl and Kubernetes' own schemas."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

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


@pytest.mark.parametrize("folder", [".", "monitoring", "autoscaling", "kserve"])
def test_kustomizations_can_be_built(folder: str) -> None:
    built = told(installed("kubectl", "kubernetes-client"), "kustomize", ".", folder=DEPLOY / "kubernetes" / folder)
    images = [line.strip() for line in built.splitlines() if line.strip(" -").startswith("image:")]
    assert all(image.strip("- ") == "image: tensorgate:0.1.0" for image in images)
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
