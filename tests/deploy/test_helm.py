"""The Helm chart: eight sets of values, rendered by Helm and validated against three versions of Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, lint

ROOT = Path(__file__).parents[2] / "deploy"
CHART = ROOT / "helm/refstore"
EXAMPLES = sorted((ROOT / "helm/examples").glob("*.yaml"))
KUBERNETES = ("1.29.0", "1.33.0", "1.37.0")
OTHERS = frozenset({"ServiceMonitor", "PrometheusRule"})
"""Kinds that Kubernetes does not bring."""


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that the chart makes of values, which its schema has checked."""
    chart = Chart.load(str(CHART))
    chart.validate_schema(chart.merge_values(values))
    rendered = chart.render(values, name="lake", namespace="data")
    texts = [text for place, text in rendered.items() if not place.endswith(".txt")]
    return [each for text in texts for each in yaml.safe_load_all(text) if isinstance(each, dict)]


def of_kind(objects: list[dict[str, Any]], kind: str, ending: str = "") -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(ending)]
    return found


def example(name: str) -> list[dict[str, Any]]:
    return render(yaml.safe_load((ROOT / f"helm/examples/{name}.yaml").read_text()))


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in objects:
        if each["kind"] == "Deployment":
            found.append(each["spec"]["template"]["spec"])
        if each["kind"] == "CronJob":
            found.append(each["spec"]["jobTemplate"]["spec"]["template"]["spec"])
    return found


def test_there_are_eight_sets_of_values() -> None:
    assert len(EXAMPLES) == 8


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_is_rendered_is_valid(file: Path, version: str) -> None:
    objects = render(yaml.safe_load(file.read_text()))
    assert objects
    for each in objects:
        if each["kind"] not in OTHERS:
            kubernetes_validate.validate(each, version, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_no_container_has_rights_that_it_does_not_need(file: Path) -> None:
    for pod in pods(render(yaml.safe_load(file.read_text()))):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        makes_pods = "k8s://" in str(pod["containers"][0]["args"])
        assert pod["automountServiceAccountToken"] is makes_pods
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]


def test_probes_and_budgets_are_there() -> None:
    objects = example("minimal")
    (api,) = of_kind(objects, "Deployment", "-api")["spec"]["template"]["spec"]["containers"]
    assert api["readinessProbe"]["httpGet"]["path"] == "/readiness"
    assert api["livenessProbe"]["httpGet"]["path"] == "/healthcheck"
    (reaper,) = of_kind(objects, "Deployment", "-reaper")["spec"]["template"]["spec"]["containers"]
    assert reaper["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert of_kind(objects, "PodDisruptionBudget", "-api")["spec"]["minAvailable"] == 1
    assert of_kind(objects, "CronJob")["spec"]["concurrencyPolicy"] == "Forbid"
    assert of_kind(objects, "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


def test_secrets_stay_in_secrets() -> None:
    minimal, named = example("minimal"), example("secret")
    assert of_kind(minimal, "Secret")["stringData"]["REFSTORE_KV"] == "redis://redis:6379/0"
    assert not [each for each in named if each["kind"] == "Secret"]
    for pod in pods(named):
        sources = [each["secretRef"]["name"] for each in pod["containers"][0]["envFrom"]]
        assert sources[0] == "lake-stores"
        assert "REFSTORE_KV" not in [each["name"] for each in pod["containers"][0].get("env", [])]


def test_the_s3_gateway_is_reached_where_it_is_enabled() -> None:
    objects = example("ingress")
    (api,) = of_kind(objects, "Deployment", "-api")["spec"]["template"]["spec"]["containers"]
    assert " ".join(api["args"]).endswith("--s3-port 9000 --no-reaper")
    assert {"secretRef": {"name": "lake-s3-key"}} in api["envFrom"]
    assert {"name": "s3", "port": 9000, "targetPort": "s3"} in of_kind(objects, "Service", "-api")["spec"]["ports"]
    assert {"port": "s3"} in of_kind(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    hosts = [rule["host"] for rule in of_kind(objects, "Ingress")["spec"]["rules"]]
    assert hosts == ["lake.example.org", "s3.lake.example.org"]
    with pytest.raises(HelmError, match=r"give api\.s3\.secretsKeySecret"):
        render({"stores": {"existingSecret": "s"}, "api": {"s3": {"enabled": True}}})


def test_spark_on_kubernetes_gets_an_account_of_its_own() -> None:
    (pod,) = [pod for pod in pods(example("spark-on-kubernetes")) if pod["containers"][0]["name"] == "gc"]
    words = pod["containers"][0]["args"]
    assert pod["serviceAccountName"] == "spark-driver"
    assert "k8s://https://kubernetes.default.svc:443" in words
    assert "spark.executor.instances=4" in words
    with pytest.raises(HelmError, match="sparkServiceAccount"):
        render({"stores": {"existingSecret": "s"}, "gc": {"master": "k8s://https://a:443"}})


def test_monitoring_has_the_alerts_of_deploy_prometheus() -> None:
    objects = example("monitoring")
    rules = yaml.safe_load((ROOT / "prometheus/refstore.rules.yaml").read_text())
    assert of_kind(objects, "PrometheusRule")["spec"] == rules
    monitor = of_kind(objects, "ServiceMonitor", "-api")
    assert monitor["spec"]["endpoints"][0]["basicAuth"]["username"] == {"name": "prometheus-key", "key": "username"}
    service = of_kind(objects, "Service", "-api")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert (CHART / "files/refstore.rules.yaml").read_text() == (ROOT / "prometheus/refstore.rules.yaml").read_text()


@pytest.mark.parametrize(
    "values",
    [
        {"stores": {"kv": "no url", "objects": "s3://b"}},
        {"api": {"replicas": 0}},
        {"api": {"replica": 2}},
        {"settings": {"PATH": "/"}},
        {"podSecurityContext": {"runAsNonRoot": False}},
        {"gc": {"schedule": "nightly"}},
    ],
)
def test_the_schema_refuses_mistakes(values: dict[str, Any]) -> None:
    with pytest.raises(HelmError):
        render({"stores": {"existingSecret": "s"}, **values})


def test_stores_must_be_given() -> None:
    with pytest.raises(HelmError, match=r"give stores\.kv and stores\.objects"):
        render({})


def test_helm_finds_nothing_to_complain_of() -> None:
    found = lint(str(CHART), {"stores": {"existingSecret": "s"}})
    assert not found["errors"]
    assert not [each for each in found["messages"] if each["severity"] > 1]
