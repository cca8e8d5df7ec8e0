"""The Kubernetes manifests and the KServe runtime: valid, true to one another, and safe to roll."""
import json
import re
import subprocess
import sys
import threading

import kubernetes_validate
import pytest
import yaml

import kserve_schema
from reading import DEPLOY, ROOT, SLUICE, WORKER, documents, kustomized, run

sys.path.insert(0, str(ROOT / "test" / "e2e"))

import prometheus  # noqa: E402

FORMS = ["pool", "sidecar"]
VERSIONS = ["1.34", kubernetes_validate.latest_version()]  # from where preStop.sleep is stable, to the newest known


def of(form, kind, name=None):
    found = [o for o in kustomized(form) if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert name is None or len(found) == 1, f"{form}: {kind} {name}: {len(found)}"
    return found[0] if name else found


def workloads(form):
    return [o for o in kustomized(form) if o["kind"] in ("Deployment", "StatefulSet")]


def containers(pod):
    """(container, whether it is a sidecar) of a pod."""
    for c in pod.get("initContainers", []):
        assert c["restartPolicy"] == "Always"
        yield c, True
    for c in pod["containers"]:
        yield c, False


def everywhere(f):
    return pytest.mark.parametrize("form", FORMS)(f)


@everywhere
@pytest.mark.parametrize("version", VERSIONS)
def test_schemas(form, version):
    """Every object is valid by Kubernetes' schema, without a field that it does not have."""
    for o in kustomized(form):
        kubernetes_validate.validate(o, version, strict=True)


@everywhere
def test_kustomization_takes_all(form):
    folder = DEPLOY / "kubernetes" / form
    k = documents(folder / "kustomization.yaml")[0]
    taken = set(k["resources"]) | {f for g in k["configMapGenerator"] for f in g["files"]}
    assert taken | {"kustomization.yaml"} == {p.name for p in folder.iterdir()}


@everywhere
def test_pods_are_restricted(form):
    """By the strictest of Kubernetes' pod security standards, and beyond: bounded, read-only, without a token."""
    for w in workloads(form):
        pod = w["spec"]["template"]["spec"]
        name = w["metadata"]["name"]
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0 and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(k) for k in ("hostNetwork", "hostPID", "hostIPC"))
        for c, _ in containers(pod):
            s = c["securityContext"]
            assert s == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, c["name"]
            assert c["resources"]["requests"]["memory"] == c["resources"]["limits"]["memory"] and c["resources"]["requests"]["cpu"]
            assert "livenessProbe" in c and ("readinessProbe" in c or "startupProbe" in c), c["name"]
        for v in pod["volumes"]:
            assert not {"hostPath", "secret"} & set(v) and ("emptyDir" not in v or v["emptyDir"]["sizeLimit"])
    namespaces = [o for o in kustomized(form) if o["kind"] == "Namespace"]
    assert all(n["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted" for n in namespaces)


@everywhere
def test_names_lead_somewhere(form):
    """Accounts, claims, config maps, mounts, ports of probes and selectors."""
    accounts = {o["metadata"]["name"] for o in of(form, "ServiceAccount")}
    claims = {o["metadata"]["name"] for o in of(form, "PersistentVolumeClaim")}
    maps = {o["metadata"]["name"] for o in of(form, "ConfigMap")}
    labels = {}
    for w in workloads(form):
        template = w["spec"]["template"]
        pod = template["spec"]
        labels[w["metadata"]["name"]] = template["metadata"]["labels"]
        assert selects(w["spec"]["selector"], template["metadata"]["labels"])
        assert pod["serviceAccountName"] in accounts
        volumes = {v["name"]: v for v in pod["volumes"]}
        for v in volumes.values():
            assert v.get("persistentVolumeClaim", {}).get("claimName", next(iter(claims), "")) in claims or not claims
            assert v.get("configMap", {}).get("name", next(iter(maps), "")) in maps
        used = set()
        for c, _ in containers(pod):
            ports = {p["name"] for p in c.get("ports", [])}
            used |= {m["name"] for m in c.get("volumeMounts", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                handler = c.get(probe, {})
                port = (handler.get("httpGet") or handler.get("tcpSocket") or {}).get("port")
                assert port is None or port in ports, f"{c['name']}: {probe}"
        assert used == set(volumes), "volumes that nobody mounts, or mounts of none"
        for spread in pod.get("topologySpreadConstraints", []):
            assert selects(spread["labelSelector"], template["metadata"]["labels"])
    for o in of(form, "Service"):
        found = [w for w in workloads(form) if o["spec"]["selector"].items() <= labels[w["metadata"]["name"]].items()]
        assert len(found) == 1, o["metadata"]["name"]
        names = {p["name"] for c, _ in containers(found[0]["spec"]["template"]["spec"]) for p in c.get("ports", [])}
        assert {p["targetPort"] for p in o["spec"]["ports"]} <= names
    for o in of(form, "PodDisruptionBudget"):
        assert sum(selects(o["spec"]["selector"], l) for l in labels.values()) == 1
    budgets = [o["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] for o in of(form, "PodDisruptionBudget")]
    assert all(w["metadata"]["name"] in budgets for w in workloads(form) if w["spec"]["replicas"] > 1)
    for w in workloads(form):
        if w["kind"] == "StatefulSet":
            assert of(form, "Service", w["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def selects(selector, labels):
    return selector.get("matchLabels", {}).items() <= labels.items()


@everywhere
def test_network_policies(form):
    """Each pod has one; the ports that they open are those of the pods they select, and every link that is configured is open."""
    policies = of(form, "NetworkPolicy")
    for w in workloads(form):
        labels = w["spec"]["template"]["metadata"]["labels"]
        ports = {p["containerPort"] for c, _ in containers(w["spec"]["template"]["spec"]) for p in c.get("ports", [])}
        mine = [p for p in policies if p["spec"]["podSelector"] and selects(p["spec"]["podSelector"], labels)]
        assert len(mine) == 1, w["metadata"]["name"]
        opened = {p["port"] for rule in mine[0]["spec"].get("ingress", []) for p in rule["ports"]}
        assert opened == ports, w["metadata"]["name"]
        assert "Ingress" in mine[0]["spec"]["policyTypes"]
    if form == "pool":
        egress = {(p["metadata"]["name"], t["podSelector"]["matchLabels"]["app.kubernetes.io/name"], port["port"])
                  for p in policies for rule in p["spec"].get("egress", []) for t in rule["to"] if "namespaceSelector" not in t
                  for port in rule["ports"]}
        ingress = {(f["podSelector"]["matchLabels"]["app.kubernetes.io/name"], p["metadata"]["name"], port["port"])
                   for p in policies for rule in p["spec"].get("ingress", []) for f in rule.get("from", []) if "podSelector" in f
                   for port in rule["ports"]}
        assert egress == ingress == {("envoy", "gateway", 8000), ("envoy", "gateway", 8001), ("gateway", "redis", 6379)}


@everywhere
def test_command_lines(form):
    for w in workloads(form):
        for c, _ in containers(w["spec"]["template"]["spec"]):
            if c["image"].startswith("sluice-serve/sluice-worker:"):
                run(WORKER, *c["args"], "--version")
            elif c["image"].startswith("sluice-serve/") and c["args"][0] == "serve":
                serve(c["args"])
            elif c["image"].startswith("sluice-serve/"):
                assert c["args"][0] == "xds"
    if form == "pool":
        run(SLUICE, "xds", "check", DEPLOY / "kubernetes/pool/topology.yaml")


def serve(args):
    """Everything about a gateway's flags is right but the repository, which is left out."""
    done = subprocess.run([SLUICE, *(a for a in args if not a.startswith("--model-repository="))], capture_output=True, text=True, timeout=20)
    assert done.stderr == "sluice: --model-repository must be specified\n", done.stderr


@everywhere
def test_a_roll_fails_no_call(form):
    """The worker outlives the gateway; the gateway's end fits into the pod's; Envoy has sent its callers away before."""
    for w in workloads(form):
        pod = w["spec"]["template"]["spec"]
        byname = {c["name"]: (c, sidecar) for c, sidecar in containers(pod)}
        if "gateway" in byname:
            gateway = byname["gateway"][0]
            assert byname["worker"][1], "the worker is a sidecar, which ends last"
            pause = gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
            timeout = next(int(a.split("=")[1]) for a in gateway["args"] if a.startswith("--exit-timeout-secs="))
            assert pod["terminationGracePeriodSeconds"] >= pause + 1 + timeout + 1 + 10 + 5, "grace, drain, last answers, unloading, last spans"
            period = gateway["readinessProbe"]["periodSeconds"] * gateway["readinessProbe"]["failureThreshold"]
            assert pause >= period
        if "envoy" in byname:
            envoy = byname["envoy"][0]
            text = envoy["lifecycle"]["preStop"]["exec"]["command"][-1]
            sleep, drain = int(re.search(r"sleep (\d+)$", text).group(1)), int(envoy["args"][envoy["args"].index("--drain-time-s") + 1])
            assert "drain_listeners?graceful&skip_exit" in text and sleep > drain
            assert pod["terminationGracePeriodSeconds"] > sleep
            if "gateway" in byname:
                assert byname["gateway"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] > sleep, "the gateway serves Envoy's last callers"
        if w["kind"] == "Deployment" and w["spec"]["replicas"] > 1:
            assert w["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@everywhere
def test_autoscaling(form):
    """On queue time, of what holds the queues, within what the control plane knows."""
    (hpa,) = of(form, "HorizontalPodAutoscaler")
    target = hpa["spec"]["scaleTargetRef"]
    w = of(form, target["kind"], target["name"])
    assert w["apiVersion"] == target["apiVersion"] and w["spec"]["replicas"] == hpa["spec"]["minReplicas"]
    (metric,) = hpa["spec"]["metrics"]
    (rule,) = documents(DEPLOY / "kubernetes/monitoring/queue-time.yaml")[0]["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    if form == "pool":
        names = [g["http"].split(".")[0] for g in documents(DEPLOY / "kubernetes/pool/topology.yaml")[0]["gateways"]]
        assert names == [f"gateway-{i}" for i in range(hpa["spec"]["maxReplicas"])]


def test_queue_time(start, tmp_path):
    """The adapter's query, by a real Prometheus on a real gateway's metrics, is the mean wait of a request."""
    if reason := prometheus.missing():
        pytest.skip(reason)
    model = tmp_path / "models" / "slow" / "1"
    model.mkdir(parents=True)
    (model.parent / "config.pbtxt").write_text(
        'backend: "identity"\nmax_batch_size: 1\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }\nparameters { key: "execute_delay_ms" value { string_value: "50" } }\n')
    s = start([tmp_path / "models"])
    (rule,) = documents(DEPLOY / "kubernetes/monitoring/queue-time.yaml")[0]["rules"]["custom"]
    # as the adapter fills its templates; the labels of pods are a cluster's
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'job="sluice"').replace("<<.GroupBy>>", "instance")
    p = prometheus.Prometheus({"sluice": s.metrics}, rules=False)
    try:
        p.scraped()
        assert p.query(query) and p.value(query) == 0, "0 without requests"
        body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
        threads = [threading.Thread(target=s.ask, args=("/v2/models/slow/infer", body)) for _ in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
        p.scraped()
        got = p.value(query)
        assert 0.2 < got < 2, f"a request waited {got} s on average; twenty at once, 50 ms each, make some 0.5 s"
    finally:
        p.stop()


def test_kserve():
    """By KServe's models, and its containers by Kubernetes' schema, in a pod like the one that KServe makes of them."""
    (runtime,), (service,) = documents(DEPLOY / "kserve/servingruntime.yaml"), documents(DEPLOY / "kserve/inferenceservice.yaml")
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1" and service["apiVersion"] == "serving.kserve.io/v1beta1"
    assert not kserve_schema.faults(runtime["spec"], "V1alpha1ServingRuntimeSpec", "spec")
    assert not kserve_schema.faults(service["spec"], "V1beta1InferenceServiceSpec", "spec")
    assert kserve_schema.faults({"supportedModelFormats": [{"nam": "x"}], "multiModel": 1}, "V1alpha1ServingRuntimeSpec"), "faults are found"
    spec = runtime["spec"]
    for version in VERSIONS:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "annotations": spec["annotations"]},
                                      "spec": {"containers": spec["containers"], "volumes": spec["volumes"]}}, version, strict=True)
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container" and set(spec["protocolVersions"]) == {"v2", "grpc-v2"}
    serve(container["args"])
    port = container["ports"][0]["containerPort"]
    assert f"--http-port={port}" in container["args"] and all(container[p]["httpGet"]["port"] == port for p in ("startupProbe", "readinessProbe", "livenessProbe"))
    predictor = service["spec"]["predictor"]["model"]
    assert predictor["runtime"] == runtime["metadata"]["name"] and predictor["protocolVersion"] in spec["protocolVersions"]
    assert predictor["modelFormat"]["name"] in {f["name"] for f in spec["supportedModelFormats"]}


def test_manifests_have_no_doubles():
    """YAML keys that stand twice, which parsers pass over."""
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [k.value for k, _ in node.value]
            assert len(keys) == len(set(keys)), f"{node.start_mark}: {sorted(k for k in keys if keys.count(k) > 1)}"
            return super().construct_mapping(node, deep)

    for path in [*DEPLOY.rglob("*.yaml")]:
        list(yaml.load_all(path.read_text(), Strict))
