"""Dashboards and alert rules against real servers: every expression is evaluated by a real Prometheus that scrapes a gateway and
an Envoy, and every metric, label and label value in it must be one that they have."""
import json
import re
import ssl
import subprocess
import threading
import time
import urllib.request

import pytest
import tritonclient.grpc as grpcclient
import yaml

import harness
import mesh as envoy
import prometheus
from certificates import authority
from test_observability import SIMPLE, TRACE, TRACEPARENT, simple

DASHBOARDS = sorted((harness.ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
RULES = harness.ROOT / "deploy" / "prometheus" / "rules.yml"
RULES_TEST = harness.ROOT / "deploy" / "prometheus" / "rules_test.yml"
RUNBOOK = harness.ROOT / "docs" / "0016-observability.md"
# What needs hardware that is not everywhere: it must be a name in the source instead, with this label.
HARDWARE = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage", "nv_gpu_power_limit"}
VARIABLES = {"$__rate_interval": "20s", "$datasource": "prometheus", "$instance": ".*", "$model": ".*", "$cluster": ".*"}
WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset", "inf", "nan"}
MODEL = """backend: "identity" max_batch_size: 4 response_cache { enable: true }
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }"""
MLP = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 512], "datatype": "FP32", "data": [1.0] * 512}]}).encode()
LIMITS = """rules:
- {name: few, models: [scarce], requests: 1/h}
- {name: watched, models: [kept], requests: 1/h, shadow: true}
"""


def panels():
    """(where, expression) of every panel, variable and annotation."""
    for path in DASHBOARDS:
        d = json.loads(path.read_text())
        for p in d["panels"]:
            for t in p.get("targets", ()):
                yield f"{path.stem}: {p['title']}", t["expr"]
        for a in d["annotations"]["list"]:
            if "expr" in a:
                yield f"{path.stem}: annotation {a['name']}", a["expr"]


def alerts():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def plain(expression):
    """An expression with the dashboards' variables filled in."""
    for name, value in VARIABLES.items():
        expression = expression.replace("${" + name[1:] + "}", value).replace(name, value)
    assert "$" not in expression, f"a variable that no dashboard has: {expression}"
    return expression


def selectors(expression):
    """The (metric, matchers) of an expression, and the labels that it groups by."""
    grouped = {label.strip() for labels in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expression)
               for label in labels.split(",") if label.strip()}
    rest = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expression)
    found = []
    for m in re.finditer(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\{(?:[^}"]|"(?:[^"\\]|\\.)*")*\})?(\s*\()?', rest):
        name, matchers, call = m.groups()
        if name and not call and name not in WORDS:
            found.append((name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', matchers or "")))
    return found, grouped


def test_selectors_are_found():
    """The reader of expressions that the tests below stand on."""
    found, grouped = selectors('histogram_quantile(0.9, sum by (le, m) (rate(a_bucket{x="}",y=~"q|r"}[5m]))) / (b > 0) or vector(0) * on (i) group_left (j) c:d')
    assert found == [("a_bucket", [("x", "=", "}"), ("y", "=~", "q|r")]), ("b", []), ("c:d", [])] and grouped == {"le", "m", "i", "j"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A gateway behind Envoy with all that makes metrics, some calls of every kind, and a Prometheus that has seen them."""
    if reason := envoy.missing() or prometheus.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("stack")
    for name in ("kept", "scarce"):
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(MODEL)
    (folder / "limits.yml").write_text(LIMITS)
    cert, key = authority(folder)
    m = p = secret = None
    try:
        m = envoy.Mesh(gateways=1, repositories=(harness.DEMO, folder / "models"), flags=[
            f"--access-log={folder}/access.log", "--metrics-config=principals=4", "--cache-config=local,size=1048576", f"--limits-file={folder}/limits.yml",
            "--limits-redis=host=127.0.0.1,port=1", "--trace-config=mode=opentelemetry",  # nobody listens on port 1
            "--trace-config=opentelemetry,url=http://127.0.0.1:1/v1/traces"])
        secret = harness.Server(repositories=[folder / "models"], scheme="https", flags=[f"--http-server-cert={cert}", f"--http-server-key={key}"])
        jobs = {"sluice": m.gateways[0].metrics, "secret": secret.metrics, "envoy": (m.admin_address, "/stats/prometheus")}
        p = prometheus.Prometheus(jobs)
        traffic(m, secret)
        p.scraped(1)
        traffic(m, secret)
        p.scraped(2)
        m.prometheus, m.secret = p, secret
        yield m
    finally:
        for started in (p, ):
            if started:
                started.stop()
        if secret:
            secret.kill()
        if m:
            m.close()


def traffic(m, secret):
    one = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()

    def post(path, body):
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://{m.http}{path}", data=body), timeout=10) as r:
                r.read()
        except urllib.error.HTTPError as e:
            e.close()

    calls = [("/v2/models/simple/infer", SIMPLE), ("/v2/models/kept/infer", one), ("/v2/models/scarce/infer", one), ("/v2/models/none/infer", one)]
    threads = [threading.Thread(target=lambda c=c: [post(*c) for _ in range(3)]) for c in calls]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with grpcclient.InferenceServerClient(m.http) as client:
        client.infer("simple", simple(grpcclient))
    with urllib.request.urlopen(f"https://{secret.http}/v2", context=ssl._create_unverified_context(), timeout=10) as r:
        r.read()


def test_the_originals_names(stack):
    """Prometheus asks for OpenMetrics, where counters must end in _total: those of the original must not be renamed."""
    p = stack.prometheus
    for name in ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count", "nv_inference_request_duration_us",
                 "nv_inference_queue_duration_us", "nv_inference_pending_request_count"):
        assert p.value(f'{name}{{model="simple",version="1"}}') is not None, name
    assert not [n for n in p.names() if n.startswith("nv_") and n.endswith("_total")]


def test_exemplars_lead_to_traces(stack):
    """A histogram's exemplar in Prometheus is the trace that the caller began."""
    p, began = stack.prometheus, time.time()
    status, _, _ = stack.gateways[0].ask("/v2/models/mlp/infer", MLP, {"traceparent": TRACEPARENT})
    assert status == 200
    for name in ("request", "queue", "compute"):
        def found():
            series = p.api("query_exemplars", query=f'sluice_{name}_duration_seconds_bucket{{model="mlp"}}', start=began - 60, end=time.time() + 1)
            return [e for s in series for e in s["exemplars"] if e["labels"] == {"trace_id": TRACE}]
        harness.wait_for(found, 10, f"an exemplar of sluice_{name}_duration_seconds")


def test_server_figures(stack):
    p = stack.prometheus
    with grpcclient.InferenceServerClient(stack.gateways[0].grpc) as client:
        client.is_server_live()
        before = p.value('sluice_connections{job="sluice",protocol="grpc"}')
        with grpcclient.InferenceServerClient(stack.gateways[0].grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as other:
            other.is_server_live()
            harness.wait_for(lambda: p.value('sluice_connections{job="sluice",protocol="grpc"}') > (before or 0), 10, "one connection more")
    assert p.value('sluice_ready{job="sluice"}') == 1 and p.value('sluice_build_info{job="sluice"}') == 1
    assert p.value('sluice_instances_up{job="sluice",model="simple"}') >= 1 and p.value('sluice_instances_busy{model="simple"}') == 0
    assert p.value('sluice_principal_requests_total{principal="anonymous",outcome="ok"}') > 0
    assert p.value('sluice_principal_requests_total{principal="anonymous",outcome="refused"}') > 0
    assert p.value("sluice_access_log_lines_total") > 0 and p.value("sluice_access_log_lost_total") == 0


def labels_of(p, name):
    return {k for series in p.api("series", **{"match[]": name, "limit": 500}) for k in series if k != "__name__"}


def check(p, names, where, expression):
    """Everything that an expression names exists. Says whether a metric of it needs hardware."""
    found, grouped = selectors(expression)
    assert found, f"{where}: no metric in {expression}"
    labels = set()
    hardware = False
    for name, matchers in found:
        if name in HARDWARE:
            hardware = True
            labels |= {"gpu_uuid", "instance"}
            continue
        if name == "ALERTS":
            labels |= {"alertname", "alertstate"}
            continue
        assert name in names, f"{where}: no server has the metric {name}"
        own = labels_of(p, name)
        labels |= own
        for label, operator, value in matchers:
            assert label in own, f"{where}: {name} has no label {label}; it has {sorted(own)}"
            if operator in ("=", "=~"):
                assert p.query(f'{name}{{{label}{operator}"{value}"}}'), f"{where}: no {name} has {label}{operator}{value}"
    assert grouped <= labels, f"{where}: {grouped - labels} is no label of {[n for n, _ in found]}"
    return hardware


def test_panels(stack):
    p, names = stack.prometheus, stack.prometheus.names()
    count, silent = 0, []
    for where, expression in panels():
        hardware = check(p, names, where, plain(expression))
        result = p.query(plain(expression))
        if not result and not hardware and "ALERTS" not in expression:
            silent.append(f"{where}: {plain(expression)}")
        count += 1
    assert not silent, "expressions without a result:\n" + "\n".join(silent)
    assert count > 60


@pytest.mark.parametrize("wrong, says", [
    ("sum(rate(sluice_calls_totals[5m]))", "no server has the metric sluice_calls_totals"), ('sluice_ready{pod="x"}', "has no label pod"),
    ("sum by (colour) (sluice_ready)", "colour"), ('sluice_calls_total{outcome="fine"}', "outcome=fine"), ("sum(sluice_ready", "parse error")])
def test_what_is_wrong_is_found(stack, wrong, says):
    """The checks above can fail."""
    with pytest.raises(AssertionError, match=says):
        check(stack.prometheus, stack.prometheus.names(), "here", wrong)
        stack.prometheus.query(wrong)


def test_variables(stack):
    names = stack.prometheus.names()
    for path in DASHBOARDS:
        for v in json.loads(path.read_text())["templating"]["list"]:
            if v["type"] != "query":
                continue
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", v["query"]["query"]).groups()
            assert metric in names and label in labels_of(stack.prometheus, metric), v["query"]


def test_alert_expressions(stack):
    p, names = stack.prometheus, stack.prometheus.names()
    for rule in alerts():
        expression = re.sub(r"\[\d+m\]", "[20s]", rule["expr"])
        check(p, names, rule["alert"], expression)
        p.query(expression)
    firing = {a["labels"]["alertname"] for a in p.api("alerts")["alerts"] if a["state"] == "firing"}
    assert firing <= {"SluiceCertificateExpires"}, firing  # the test's own, of two days
    states = {r["name"]: r["health"] for g in p.api("rules")["groups"] for r in g["rules"]}
    assert states == {rule["alert"]: "ok" for rule in alerts()}
    harness.wait_for(lambda: "SluiceCertificateExpires" in {a["labels"]["alertname"] for a in p.api("alerts")["alerts"]}, 10, "an alert on a certificate of two days")


def test_what_kubernetes_scales_by(stack):
    """The rule of prometheus-adapter, with this Prometheus's label in the place of those that Kubernetes adds."""
    rules = yaml.safe_load((harness.ROOT / "deploy/kubernetes/monitoring/queue-time.yaml").read_text())["rules"]["custom"]
    for rule in rules:
        expression = rule["metricsQuery"].replace("<<.LabelMatchers>>", "").replace("<<.GroupBy>>", "instance")
        check(stack.prometheus, stack.prometheus.names(), rule["name"]["as"], expression)
        assert stack.prometheus.query(expression), expression
        assert rule["seriesQuery"].split("{")[0] in stack.prometheus.names()


def test_figures_of_this_traffic(stack):
    p = stack.prometheus
    assert p.value('sluice_limit_refusals_total{rule="few"}') >= 4
    assert p.value('sluice_call_refusals_total{reason="rate_limited"}') >= 4
    assert p.value('sluice_limit_redis_up') == 0
    assert 86400 < p.value('sluice_certificate_not_after_timestamp_seconds{use="http"} - time()') <= 2 * 86400
    assert p.value('sluice_config_last_reload_successful{config="limits"}') == 1
    assert p.value('envoy_cluster_membership_healthy{envoy_cluster_name="http/default"}') == 1


def test_every_metric_is_documented(stack):
    documented = (harness.ROOT / "gateway" / "stats" / "doc.go").read_text()
    described = set(re.findall(r"\bsluice_\w+", re.sub(r"\n//\s*", " ", documented)))
    for text in re.findall(r"(\w*)\{([\w,\s/]+)\}(\w*)", documented):
        described |= {text[0] + part.strip(" \n/\t") + text[2] for part in text[1].split(",")}
    ours = {re.sub(r"_(bucket|count|sum)$", "", n) for n in stack.prometheus.names() if n.startswith("sluice_")}
    assert not ours - described, f"not in gateway/stats/doc.go: {sorted(ours - described)}"


def test_generated_files_are_up_to_date():
    subprocess.run([str(harness.ROOT / "scripts" / "make_dashboards.py"), "--check"], check=True)


def test_dashboards_are_whole():
    """What Grafana would not tell: panels that overlap, numbers that are there twice, sources and links that lead nowhere."""
    sources = {s["uid"]: s for s in yaml.safe_load((harness.ROOT / "deploy/grafana/provisioning/datasources/sluice.yml").read_text())["datasources"]}
    assert sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"][0] == {"name": "trace_id", "datasourceUid": "jaeger", "urlDisplayLabel": "Trace"}
    assert sources["jaeger"]["type"] == "jaeger"
    uids, exemplars = set(), 0
    for path in DASHBOARDS:
        d = json.loads(path.read_text())
        assert d["uid"] not in uids and d["title"]
        uids.add(d["uid"])
        taken, numbers = set(), set()
        for p in d["panels"]:
            at = p["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken and at["x"] + at["w"] <= 24, f"{path.stem}: {p['title']} overlaps"
            taken |= cells
            assert p["id"] not in numbers
            numbers.add(p["id"])
            for t in p.get("targets", ()):
                exemplars += t.get("exemplar", False)
                assert t["datasource"]["uid"] == "${datasource}"
                if t.get("exemplar"):
                    assert "_bucket" in t["expr"], f"{p['title']}: exemplars come with histograms"
            assert p["type"] == "row" or p["description"]
    assert exemplars >= 4


def lost(given, kept, at=""):
    """What of a document is not in the other; empty values may be left out."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for k, v in given.items():
            yield from lost(v, kept[k], f"{at}.{k}") if k in kept else [f"{at}.{k}"] * (v not in (None, [], {}, "", False, 0))
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for x, y in zip(given, kept):
            yield from lost(x, y, at)
    elif given != kept:
        yield f"{at}: {given!r} is read as {kept!r}"


def test_grafanas_own_models_read_them():
    """Grafana's models, made from its schemas for the version of compose.yaml, know every member of the dashboards."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="requirements/deploy.txt is not installed")
    from grafana_foundation_sdk.cog import encoder, plugins
    plugins.register_default_plugins()
    version = re.search(r"grafana/grafana:(\d+\.\d+)", (harness.ROOT / "compose.yaml").read_text()).group(1)
    assert f"!{version}." in (harness.ROOT / "requirements" / "deploy.in").read_text()
    ours = {".annotations.list.titleFormat", ".templating.list.definition"}  # of the data source's plugin; its schema is not in them
    for path in DASHBOARDS:
        given = json.loads(path.read_text())
        kept = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(json.loads(path.read_text()))))
        assert not set(lost(given, kept)) - ours, path.name
    given["panels"][1]["fieldConfig"]["defaults"]["custom"]["drawStile"] = "line"
    kept = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(json.loads(json.dumps(given)))))
    assert ".panels.fieldConfig.defaults.custom.drawStile" in set(lost(given, kept)), "a member that Grafana does not know is not found"


def test_alerts_have_runbooks_and_tests():
    tests = yaml.safe_load(RULES_TEST.read_text())["tests"]
    firing, silent = set(), set()
    for t in tests:
        for a in t["alert_rule_test"]:
            (firing if a.get("exp_alerts") else silent).add(a["alertname"])
    names = [rule["alert"] for rule in alerts()]
    assert firing == silent == set(names) and len(names) == len(set(names))
    headings = {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", RUNBOOK.read_text(), re.M)}
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/{RUNBOOK.name}#{rule['alert'].lower()}"
        assert rule["alert"].lower() in headings, f"no section {rule['alert']} in {RUNBOOK.name}"
        assert rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"]


def test_promtool():
    if reason := prometheus.missing():
        pytest.skip(reason)
    for arguments in (["check", "rules", RULES], ["test", "rules", RULES_TEST], ["check", "config", RULES.parent / "prometheus.yml"]):
        done = subprocess.run([prometheus.program("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
