#!/usr/bin/env python3
"""Writes deploy/grafana/dashboards/*.json. With --check it writes nothing and says which file is out of date.

A dashboard is a list of rows, a row a list of panels; what is the same for all stands here once. test/e2e/test_dashboards.py
asks real servers whether every metric and label in here exists."""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MODEL = 'model=~"$model",instance=~"$instance"'
INSTANCE = 'instance=~"$instance"'
CLUSTER = 'envoy_cluster_name=~"$cluster"'


def panel(title, description, *targets, unit="short", kind="timeseries", width=8, stack=False, exemplar=False, limit=None, decimals=None):
    """targets are (expression, legend); limit is a threshold line."""
    defaults = {"unit": unit, "custom": {}, "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}]}}
    if decimals is not None:
        defaults["decimals"] = decimals
    if limit is not None:
        defaults["thresholds"]["steps"].append({"color": "red", "value": limit})
    options = {}
    if kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 20 if stack else 8, "showPoints": "never", "spanNulls": False,
                              "stacking": {"mode": "normal" if stack else "none", "group": "A"},
                              "thresholdsStyle": {"mode": "line" if limit is not None else "off"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    elif kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area",
                   "justifyMode": "auto", "orientation": "auto", "textMode": "auto"}
    elif kind == "heatmap":
        defaults["custom"] = {"scaleDistribution": {"type": "linear"}}
        options = {"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
                   "yAxis": {"axisPlacement": "left", "unit": unit}, "tooltip": {"mode": "single", "yHistogram": False}, "legend": {"show": True},
                   "exemplars": {"color": "rgba(255,0,255,0.7)"}}
    elif kind == "table":
        options = {"showHeader": True, "cellHeight": "sm"}
    made = []
    for i, (expression, legend) in enumerate(targets):
        target = {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend, "editorMode": "code",
                  "range": kind not in ("stat", "table"), "instant": kind in ("stat", "table")}
        if exemplar:
            target["exemplar"] = True
        if kind == "heatmap":
            target["format"] = "heatmap"
        if kind == "table":
            target["format"] = "table"
        made.append(target)
    return {"type": kind, "title": title, "description": description, "datasource": SOURCE, "targets": made,
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "width": width, "height": 4 if kind == "stat" else 8}


def variable(name, label, query, multi=True):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query,
            "refresh": 2, "sort": 1, "multi": multi, "includeAll": multi, "allValue": ".*" if multi else None,
            "current": {"text": "All", "value": "$__all"} if multi else {}, "hide": 0, "options": [], "regex": ""}


def dashboard(name, title, description, variables, rows):
    panels, y, number = [], 0, 1
    for heading, content in rows:
        panels.append({"id": number, "type": "row", "title": heading, "collapsed": False, "panels": [], "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for p in content:
            w, h = p.pop("width"), p.pop("height")
            if x + w > 24:
                x, y, tallest = 0, y + tallest, 0
            panels.append({"id": number, **p, "gridPos": {"h": h, "w": w, "x": x, "y": y}})
            number, x, tallest = number + 1, x + w, max(tallest, h)
        y += tallest
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1, "regex": "", "hide": 0,
              "multi": False, "includeAll": False, "options": [], "current": {"text": "Prometheus", "value": "prometheus"}}
    return name, {
        "uid": f"sluice-{name}", "title": title, "description": description, "tags": ["sluice"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timezone": "", "fiscalYearStartMonth": 0,
        "annotations": {"list": [{"builtIn": 1, "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "enable": True, "hide": True,
                                  "iconColor": "rgba(0, 211, 255, 1)", "name": "Annotations & Alerts", "type": "dashboard"},
                                 {"datasource": SOURCE, "enable": True, "expr": 'ALERTS{alertstate="firing",alertname=~"Sluice.*|Envoy.*"}', "iconColor": "red",
                                  "name": "Alerts", "titleFormat": "{{alertname}}"}]},
        "links": [{"type": "dashboards", "title": "sluice", "tags": ["sluice"], "asDropdown": True, "includeVars": True, "keepTime": True,
                   "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}],
        "templating": {"list": [source, *variables]}, "panels": panels}


def quantiles(metric, labels, by=""):
    """Three quantiles of a histogram, over all or by a label."""
    group, legend = (f"le, {by}", "{{%s}} " % by) if by else ("le", "")
    return [(f"histogram_quantile({q}, sum by ({group}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))", f"{legend}p{text}")
            for q, text in ((0.5, "50"), (0.95, "95"), (0.99, "99"))]


def rate(metric, labels, by, legend):
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))", legend


def ratio(above, below):
    return f"({above}) / ({below} > 0)"


def total(metric, labels, by=""):
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric}{{{labels}}}[$__rate_interval]))"


INSTANCES = variable("instance", "Gateway", "label_values(sluice_build_info, instance)")
MODELS = variable("model", "Model", "label_values(nv_inference_request_success, model)")


def overview():
    ok, bad = total("nv_inference_request_success", MODEL), total("nv_inference_request_failure", MODEL)
    return dashboard("overview", "sluice: overview", "Rate, errors and duration for each model, and what is refused.", [INSTANCES, MODELS], [
        ("Now", [
            panel("Gateways ready", "Gateways that answer that they are ready.", (f"sum(sluice_ready{{{INSTANCE}}})", ""), kind="stat", width=4),
            panel("Requests per second", "Inference requests that models answered.", (ok, ""), unit="reqps", kind="stat", width=4),
            panel("Failures", "Share of the requests that failed in a model, a worker or the server.",
                  (ratio(total("nv_inference_request_failure", MODEL + ',reason=~"BACKEND|OTHER"') + " or vector(0)", f"{ok} + {bad}"), ""), unit="percentunit",
                  kind="stat", width=4, limit=0.01),
            panel("p99", "One of a hundred requests took longer, from arrival to answer.",
                  (quantiles("sluice_request_duration_seconds", MODEL)[2][0], ""), unit="s", kind="stat", width=4),
            panel("In flight", "Calls that were opened and have no answer yet.", (f"sum(sluice_requests_in_flight{{{INSTANCE}}})", ""), kind="stat", width=4),
            panel("Waiting", "Requests that wait for an instance.", (f"sum(nv_inference_pending_request_count{{{MODEL}}})", ""), kind="stat", width=4),
        ]),
        ("Models", [
            panel("Rate", "Requests that each model answered.", rate("nv_inference_request_success", MODEL, "model", "{{model}}"), unit="reqps"),
            panel("Errors", "Requests that failed, by model and by the original's reasons: REJECTED by a limit, CANCELED by the caller, BACKEND: in the model or its worker.",
                  rate("nv_inference_request_failure", MODEL, "model, reason", "{{model}} {{reason}}"), unit="reqps"),
            panel("Duration", "From arrival to answer. A point is the trace of one request: a click leads to it.",
                  *quantiles("sluice_request_duration_seconds", MODEL, "model")[1:], unit="s", exemplar=True),
            panel("Durations of all requests", "How many requests took how long; points are traces.",
                  (f"sum by (le) (rate(sluice_request_duration_seconds_bucket{{{MODEL}}}[$__rate_interval]))", "{{le}}"), unit="s", kind="heatmap", width=16, exemplar=True),
            panel("Where the time goes", "Mean time of a request by phase.", *[
                (ratio(total(f"nv_inference_{phase}_duration_us", MODEL) + " / 1e6", ok), phase)
                for phase in ("queue", "compute_input", "compute_infer", "compute_output")], unit="s", stack=True),
        ]),
        ("Calls", [
            panel("Answers", "Every answer of the front ends, by HTTP status or gRPC code.",
                  rate("sluice_requests_total", INSTANCE, "protocol, code", "{{protocol}} {{code}}"), unit="reqps", stack=True, width=6),
            panel("Outcomes", "invalid: the request's fault; refused: by a limit or the server's state; failed: ours, or a model's.",
                  rate("sluice_calls_total", INSTANCE, "outcome", "{{outcome}}"), unit="reqps", stack=True, width=6),
            panel("Refusals", "Calls that were refused or given up before or in a model's queue, by the reason that the caller was told.",
                  rate("sluice_call_refusals_total", INSTANCE, "protocol, reason", "{{protocol}} {{reason}}"), unit="reqps", stack=True, width=6),
            panel("Connections", "Open connections of clients.", (f"sum by (instance, protocol) (sluice_connections{{{INSTANCE}}})", "{{instance}} {{protocol}}"), width=6),
        ]),
    ])


def model():
    return dashboard("model", "sluice: queue, batches, instances", "Why a model is slow: waiting, batches, instances, cache.", [INSTANCES, MODELS], [
        ("Queue", [
            panel("Time in the queue", "What a request waits for an instance. Points are traces.", *quantiles("sluice_queue_duration_seconds", MODEL, "model")[1:], unit="s", exemplar=True, limit=0.5),
            panel("Waiting requests", "Requests in the queue.", (f"sum by (model) (nv_inference_pending_request_count{{{MODEL}}})", "{{model}}")),
            panel("Refused by the queue", "Requests that a full queue refused, or that waited longer than allowed.",
                  rate("sluice_refusals_total", MODEL, "model, reason", "{{model}} {{reason}}"), unit="reqps", stack=True),
        ]),
        ("Batches", [
            panel("Batch size", "Mean rows of an execution.", (ratio(total("nv_inference_count", MODEL, "model"), total("nv_inference_exec_count", MODEL, "model")), "{{model}}"), decimals=1),
            panel("Batch sizes", "How many executions had how many rows.",
                  (f"sum by (le) (rate(sluice_batch_size_bucket{{{MODEL}}}[$__rate_interval]))", "{{le}}"), kind="heatmap"),
            panel("Executions", "Batches and rows that instances executed.", rate("nv_inference_exec_count", MODEL, "model", "{{model}} batches"),
                  rate("nv_inference_count", MODEL, "model", "{{model}} rows"), unit="ops"),
            panel("Time of a batch", "From the instance's start to its end. Points are traces.", *quantiles("sluice_compute_duration_seconds", MODEL, "model")[1:], unit="s", exemplar=True),
            panel("Parts of it", "Mean time of laying out inputs, of the model itself, and of taking the outputs.", *[
                (ratio(total(f"nv_inference_compute_{phase}_duration_us", MODEL, "model") + " / 1e6", total("nv_inference_request_success", MODEL, "model")), "{{model}} " + phase)
                for phase in ("input", "infer", "output")], unit="s"),
        ]),
        ("Instances", [
            panel("Busy instances", "Share of a version's instances that have a batch. At 1 a further instance, or a larger batch, shortens the queue.",
                  (f"sum by (model, version) (sluice_instances_busy{{{MODEL}}}) / sum by (model, version) (sluice_instances_up{{{MODEL}}} > 0)", "{{model}} {{version}}"), unit="percentunit"),
            panel("Instances", "Instances whose worker serves, and how many the configuration asks for.",
                  (f"sum by (model) (sluice_instances_up{{{MODEL}}})", "{{model}}"), (f"sum by (model) (sluice_instances{{{MODEL}}})", "{{model}} wanted")),
            panel("Loading", "Seconds that the last load of each version took.", (f"max by (model, version) (nv_model_load_duration_secs{{{MODEL}}})", "{{model}} {{version}}"), unit="s"),
        ]),
        ("Response cache", [
            panel("Hits", "Share of the lookups of a model that found an answer.",
                  (ratio(total("nv_cache_num_hits_per_model", MODEL, "model"),
                         f"({total('nv_cache_num_hits_per_model', MODEL, 'model')} + {total('nv_cache_num_misses_per_model', MODEL, 'model')})"), "{{model}}"), unit="percentunit"),
            panel("Levels", "Lookups and hits by level.", rate("sluice_cache_lookups_total", INSTANCE, "level", "{{level}} lookups"),
                  rate("sluice_cache_hits_total", INSTANCE, "level", "{{level}} hits"), unit="ops"),
            panel("Time of a lookup", "Mean seconds by level.", (ratio(total("sluice_cache_lookup_seconds_total", INSTANCE, "level"), total("sluice_cache_lookups_total", INSTANCE, "level")), "{{level}}"), unit="s"),
            panel("Trouble", "Lookups and fills that failed, answers that were not kept, and 1 where a level is not asked since it failed.",
                  rate("sluice_cache_failures_total", INSTANCE, "level", "{{level}} failures"), rate("sluice_cache_dropped_total", INSTANCE, "level", "{{level}} dropped"),
                  (f"max by (level) (sluice_cache_breaker_open{{{INSTANCE}}})", "{{level}} breaker"), unit="ops"),
            panel("Size", "Share of the local level's memory that is in use, and entries that made room for others.",
                  (f"max by (instance) (nv_cache_util{{{INSTANCE}}})", "{{instance}} in use"), unit="percentunit"),
            panel("Evictions", "Entries that made room for others.", (f"sum by (instance) (rate(nv_cache_num_evictions{{{INSTANCE}}}[$__rate_interval]))", "{{instance}}"), unit="ops"),
        ]),
    ])


def callers():
    return dashboard("callers", "sluice: callers and limits", "Who was refused and why, who uses what.", [INSTANCES], [
        ("Refusals", [
            panel("By reason", "Calls of any kind that were refused or given up.", rate("sluice_call_refusals_total", INSTANCE, "reason", "{{reason}}"), unit="reqps", stack=True, width=12),
            panel("By limit", "Refusals of the limits file, by rule and kind of limit.", rate("sluice_limit_refusals_total", INSTANCE, "rule, limit", "{{rule}} {{limit}}"), unit="reqps", stack=True, width=12),
            panel("Would have been refused", "Refusals of rules that only watch.", rate("sluice_limit_shadow_refusals_total", INSTANCE, "rule, limit", "{{rule}} {{limit}}"), unit="reqps", width=12),
            panel("Limits through Redis", "1 while limits are shared through Redis; 0: each gateway counts for itself.",
                  (f"min by (instance) (sluice_limit_redis_up{{{INSTANCE}}})", "{{instance}}"), width=12),
        ]),
        ("Principals (with --metrics-config principals=N)", [
            panel("Requests", "Calls by principal and outcome.", rate("sluice_principal_requests_total", INSTANCE, "principal, outcome", "{{principal}} {{outcome}}"), unit="reqps"),
            panel("Time of instances", "Seconds of instances that each principal's requests took each second, by their rows of the batches.",
                  rate("sluice_principal_compute_seconds_total", INSTANCE, "principal", "{{principal}}"), unit="s", stack=True),
            panel("Bytes", "Bodies sent and answers got.", rate("sluice_principal_received_bytes_total", INSTANCE, "principal", "{{principal}} in"),
                  rate("sluice_principal_sent_bytes_total", INSTANCE, "principal", "{{principal}} out"), unit="Bps"),
        ]),
    ])


def server():
    return dashboard("server", "sluice: workers and gateway", "Worker processes, GPUs, the gateway itself, and what it loses.", [INSTANCES], [
        ("Workers", [
            panel("Up", "1 while a worker process serves.", (f"min by (instance, worker) (sluice_worker_up{{{INSTANCE}}})", "{{instance}} {{worker}}")),
            panel("Restarts", "Times that a worker was started again.", (f"sum by (instance, worker) (increase(sluice_worker_restarts_total{{{INSTANCE}}}[$__rate_interval]))", "{{instance}} {{worker}}")),
            panel("Memory", "Resident memory of the worker processes.", (f"max by (instance, worker) (sluice_worker_resident_bytes{{{INSTANCE}}})", "{{instance}} {{worker}}"), unit="bytes"),
        ]),
        ("GPUs", [
            panel("Utilization", "Share of time that a GPU was busy.", (f"max by (gpu_uuid) (nv_gpu_utilization{{{INSTANCE}}})", "{{gpu_uuid}}"), unit="percentunit"),
            panel("Memory", "GPU memory in use and there.", (f"max by (gpu_uuid) (nv_gpu_memory_used_bytes{{{INSTANCE}}})", "{{gpu_uuid}} used"),
                  (f"max by (gpu_uuid) (nv_gpu_memory_total_bytes{{{INSTANCE}}})", "{{gpu_uuid}} total"), unit="bytes"),
            panel("Power", "Watts.", (f"max by (gpu_uuid) (nv_gpu_power_usage{{{INSTANCE}}})", "{{gpu_uuid}}"), (f"max by (gpu_uuid) (nv_gpu_power_limit{{{INSTANCE}}})", "{{gpu_uuid}} limit"), unit="watt"),
        ]),
        ("Machine and gateway", [
            panel("CPU of the gateway", "Processors that the gateway process uses; the machine's share of busy time beside it.",
                  (f'rate(process_cpu_seconds_total{{{INSTANCE},job="sluice"}}[$__rate_interval])', "{{instance}} gateway"), (f"nv_cpu_utilization{{{INSTANCE}}}", "{{instance}} machine")),
            panel("Memory of the gateway", "Resident memory and heap.", (f'process_resident_memory_bytes{{{INSTANCE},job="sluice"}}', "{{instance}} resident"),
                  (f'go_memstats_heap_inuse_bytes{{{INSTANCE},job="sluice"}}', "{{instance}} heap"), unit="bytes"),
            panel("Goroutines and descriptors", "What grows without end is a leak.", (f'go_goroutines{{{INSTANCE},job="sluice"}}', "{{instance}} goroutines"),
                  (f'process_open_fds{{{INSTANCE},job="sluice"}}', "{{instance}} descriptors")),
        ]),
        ("What is lost, and what changes", [
            panel("Lost traces and log lines", "Sampled traces that were not exported, lines of the access log for which there was no room, lines of the server's log that "
                  "were too many or could not be written.",
                  rate("sluice_traces_dropped_total", INSTANCE, "instance", "{{instance}} traces"),
                  rate("sluice_access_log_lost_total", INSTANCE, "instance", "{{instance}} access log"),
                  rate("sluice_log_lost_total", INSTANCE, "instance, level, why", "{{instance}} log {{level}} {{why}}"), unit="ops"),
            panel("Configuration", "1 while the last reading of a configuration file was taken.",
                  (f"min by (instance, config) (sluice_config_last_reload_successful{{{INSTANCE}}})", "{{instance}} {{config}}")),
            panel("Certificates", "Time until the certificates that the gateway shows end.",
                  (f"min by (instance, use) (sluice_certificate_not_after_timestamp_seconds{{{INSTANCE}}}) - time()", "{{instance}} {{use}}"), unit="s"),
            panel("Versions", "What runs.", (f"max by (instance, version, go_version, revision) (sluice_build_info{{{INSTANCE}}})", ""), kind="table", width=24),
        ]),
    ])


def envoy():
    clusters = variable("cluster", "Cluster", "label_values(envoy_cluster_membership_total, envoy_cluster_name)")
    return dashboard("envoy", "sluice: Envoy and control plane", "What Envoy sees of callers and of gateways.", [clusters], [
        ("Callers", [
            panel("Answers", "What callers got, by class of status.",
                  ('sum by (envoy_response_code_class) (rate(envoy_http_downstream_rq_xx{envoy_http_conn_manager_prefix!="admin"}[$__rate_interval]))', "{{envoy_response_code_class}}xx"), unit="reqps", stack=True),
            panel("Duration", "From the caller's first byte to its last.", *[
                (f'histogram_quantile({q}, sum by (le) (rate(envoy_http_downstream_rq_time_bucket{{envoy_http_conn_manager_prefix!="admin"}}[$__rate_interval])))', f"p{round(q * 100)}")
                for q in (0.5, 0.95, 0.99)], unit="ms"),
            panel("Connections and calls", "Open at Envoy.", ('sum(envoy_http_downstream_cx_active{envoy_http_conn_manager_prefix!="admin"})', "connections"),
                  ('sum(envoy_http_downstream_rq_active{envoy_http_conn_manager_prefix!="admin"})', "calls")),
        ]),
        ("Gateways", [
            panel("Healthy gateways", "Gateways of a cluster that Envoy sends calls to.", (f"sum by (envoy_cluster_name) (envoy_cluster_membership_healthy{{{CLUSTER}}})", "{{envoy_cluster_name}}"),
                  (f"sum by (envoy_cluster_name) (envoy_cluster_membership_total{{{CLUSTER}}})", "{{envoy_cluster_name}} all")),
            panel("Answers of gateways", "By class of status.", rate("envoy_cluster_upstream_rq_xx", CLUSTER, "envoy_cluster_name, envoy_response_code_class", "{{envoy_cluster_name}} {{envoy_response_code_class}}xx"), unit="reqps", stack=True),
            panel("Time of gateways", "From Envoy's last byte of the request to the gateway's last of the answer.", *[
                (f"histogram_quantile({q}, sum by (le, envoy_cluster_name) (rate(envoy_cluster_upstream_rq_time_bucket{{{CLUSTER}}}[$__rate_interval])))", "{{envoy_cluster_name}} p" + str(round(q * 100)))
                for q in (0.5, 0.99)], unit="ms"),
            panel("Retries", "Calls that were sent once more, and those that the budget did not allow.", rate("envoy_cluster_upstream_rq_retry", CLUSTER, "envoy_cluster_name", "{{envoy_cluster_name}}"),
                  rate("envoy_cluster_upstream_rq_retry_overflow", CLUSTER, "envoy_cluster_name", "{{envoy_cluster_name}} over budget"), unit="reqps"),
            panel("Put aside", "Gateways that outlier detection takes out, and circuit breakers that are open.", (f"sum by (envoy_cluster_name) (envoy_cluster_outlier_detection_ejections_active{{{CLUSTER}}})", "{{envoy_cluster_name}} ejected"),
                  (f"max by (envoy_cluster_name) (envoy_cluster_circuit_breakers_default_rq_open{{{CLUSTER}}})", "{{envoy_cluster_name}} breaker")),
            panel("Timeouts and overflows", "Calls that took too long, or found no room.", rate("envoy_cluster_upstream_rq_timeout", CLUSTER, "envoy_cluster_name", "{{envoy_cluster_name}} timeouts"),
                  rate("envoy_cluster_upstream_rq_pending_overflow", CLUSTER, "envoy_cluster_name", "{{envoy_cluster_name}} overflows"), unit="reqps"),
        ]),
        ("Control plane", [
            panel("Connected", "1 while Envoy has a control plane; without one it keeps what it has.", ("min by (instance) (envoy_control_plane_connected_state)", "{{instance}}")),
            panel("Updates", "Configurations that Envoy took.", ("sum(rate(envoy_cluster_manager_cds_update_success[$__rate_interval]))", "clusters"),
                  ("sum(rate(envoy_listener_manager_lds_update_success[$__rate_interval]))", "listeners"), unit="ops"),
            panel("Refused updates", "Configurations that Envoy did not take: its log says why.", ("sum(increase(envoy_cluster_manager_cds_update_rejected[$__rate_interval]))", "clusters"),
                  ("sum(increase(envoy_listener_manager_lds_update_rejected[$__rate_interval]))", "listeners")),
        ]),
    ])


def main():
    stale = []
    for name, content in (overview(), model(), callers(), server(), envoy()):
        path, text = FOLDER / f"{name}.json", json.dumps(content, indent=1) + "\n"
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path))
        if "--check" not in sys.argv:
            path.write_text(text)
    if "--check" in sys.argv and stale:
        sys.exit("out of date (scripts/make_dashboards.py): " + " ".join(stale))


if __name__ == "__main__":
    main()
