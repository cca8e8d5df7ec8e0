"""Calls as SageMaker and Vertex AI send them, in their order; one server of each answers all of them.

A case is (method, path, body or None, headers). {root} stands for the folder that models are loaded from: /opt/ml/models of the
original, another one of ours. original_platforms.py keeps the original's answers in platforms.json, test_platforms_golden.py
sends the cases to ours. OURS holds the answers that differ on purpose: (status, what the body must hold, reason).
"""
import json
import struct

SM_BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VX_BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
ROW = struct.pack("<4i", 1, 2, 3, 4)
DEFAULT = "identity_int32"  # the default model of both


def infer(**rest):
    return json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}], **rest}).encode()


HEAD = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "INT32", "parameters": {"binary_data_size": 16}}],
                   "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
PLAIN = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


def load(name, url):
    return json.dumps({"model_name": name, "url": url}).encode()


def sized(kind, size, body=HEAD + ROW):
    return "POST", "/invocations" if kind is SM_BINARY else "/predict", body, {"Content-Type": f"{kind}{size}"}


def binary(kind):
    """What both platforms have: the content type that tells how much of a body is JSON."""
    return {
        "binary": sized(kind, len(HEAD)),
        "binary, a number with a sign and spaces": sized(kind, f" +{len(HEAD)}"),
        "binary, a number with something behind": sized(kind, f"{len(HEAD)}; charset=utf-8"),
        "binary, too long": sized(kind, 10000),
        "binary, negative": sized(kind, -1),
        "binary, no number": sized(kind, "x"),
        "binary, nothing": sized(kind, ""),
        "binary, too large a number": sized(kind, "99999999999"),
        "binary, something before": ("POST", sized(kind, 1)[1], HEAD + ROW, {"Content-Type": f"x/y, {kind}{len(HEAD)}"}),
        "binary, raw": sized(kind, 0, ROW),
        "binary, the protocol's header counts for nothing": (
            "POST", sized(kind, 1)[1], HEAD + ROW, {"Content-Type": "application/json", "Inference-Header-Content-Length": str(len(HEAD))}),
        "another content type": ("POST", sized(kind, 1)[1], infer(), {"Content-Type": "text/csv"}),
        "accepted compression is not used": ("POST", sized(kind, 1)[1], infer(), {"Accept-Encoding": "gzip"}),
        "an encoded body is taken as it is": ("POST", sized(kind, 1)[1], infer(), {"Content-Encoding": "gzip"}),
    }


SAGEMAKER = {
    "ping": ("GET", "/ping", None, {}),
    "ping by POST": ("POST", "/ping", b"", {}),
    "invocations": ("POST", "/invocations", infer(id="7"), {"Content-Type": "application/json"}),
    "invocations by GET": ("GET", "/invocations", None, {}),
    "invocations, no JSON": ("POST", "/invocations", b"{", {}),
    "invocations, unknown input": ("POST", "/invocations", infer().replace(b"INPUT0", b"NOPE"), {}),
    **binary(SM_BINARY),
    "the protocol's own path": ("GET", "/v2", None, {}),
    "another path": ("GET", "/nope", None, {}),
    "a path with a slash behind": ("GET", "/ping/", None, {}),
    "empty list": ("GET", "/models", None, {}),
    "empty list, slash": ("GET", "/models/", None, {}),
    "get what is not there": ("GET", "/models/nope", None, {}),
    "invoke what is not there": ("POST", "/models/nope/invoke", PLAIN, {}),
    "unload what is not there": ("DELETE", "/models/nope", None, {}),
    "unload nothing": ("DELETE", "/models", None, {}),
    "models by PUT": ("PUT", "/models/nope", b"", {}),
    "too long a path": ("GET", "/models/a/b/c", None, {}),
    "load, no JSON": ("POST", "/models", b"{", {}),
    "load, a name that is no string": ("POST", "/models", b'{"model_name":3,"url":"{root}/aa/model"}', {}),
    "load, no folder": ("POST", "/models", load("nofolder", "{root}/nofolder/model"), {}),
    "load, not under the root": ("POST", "/models", load("aa", "/tmp/aa/model"), {}),
    "load, out of the root": ("POST", "/models", load("aa", "{root}/aa/model/../../../../../../../../../../tmp"), {}),
    "load, a device": ("POST", "/models", load("aa", "/dev/shm/model"), {}),
    "load, of two parts": ("POST", "/models", load("aa", "{root}/aa"), {}),
    "load, a config that is wrong": ("POST", "/models", load("broken", "{root}/broken/model"), {}),
    "list after loads that failed": ("GET", "/models", None, {}),
    "load": ("POST", "/models", load("aa", "{root}/aa/model"), {}),
    "load again": ("POST", "/models", load("aa", "{root}/aa/model"), {}),
    "load of a name that another has": ("POST", "/models", load("zz", "{root}/bb/model"), {TARGET: "aa"}),
    "list": ("GET", "/models", None, {}),
    "get": ("GET", "/models/aa", None, {}),
    "get, with a verb": ("GET", "/models/aa/invoke", None, {}),
    "invoke": ("POST", "/models/aa/invoke", PLAIN, {}),
    "invoke, no JSON": ("POST", "/models/aa/invoke", b"{", {}),
    "invoke, unknown input": ("POST", "/models/aa/invoke", PLAIN.replace(b"INPUT0", b"NOPE"), {}),
    "load, a config at the top": ("POST", "/models", load("top", "{root}/top/model"), {}),
    "get, a config at the top": ("GET", "/models/top", None, {}),
    "invoke, a config at the top": ("POST", "/models/top/invoke", PLAIN, {}),
    "load, an archive's name": ("POST", "/models", load("bb", "{root}/bb/model"), {TARGET: "b.tar.gz"}),
    "get, an archive's name": ("GET", "/models/bb", None, {}),
    "invoke, an archive's name": ("POST", "/models/bb/invoke", PLAIN, {TARGET: "b.tar.gz"}),
    "invoke, no archive's name": ("POST", "/models/bb/invoke", PLAIN, {}),
    "invoke, another archive's name": ("POST", "/models/bb/invoke", PLAIN, {TARGET: "aa"}),
    "list of three": ("GET", "/models", None, {}),
    "unload, an archive's name": ("DELETE", "/models/bb", None, {TARGET: "b.tar.gz"}),
    "load, an ensemble": ("POST", "/models", load("ens", "{root}/ens/model"), {}),
    "invoke, an ensemble": ("POST", "/models/ens/invoke", PLAIN, {}),
    "unload, an ensemble": ("DELETE", "/models/ens", None, {}),
    "unload": ("DELETE", "/models/aa", None, {}),
    "unload again": ("DELETE", "/models/aa", None, {}),
    "invoke after unload": ("POST", "/models/aa/invoke", PLAIN, {}),
    "load after unload": ("POST", "/models", load("aa", "{root}/aa/model"), {}),
    "invoke after load": ("POST", "/models/aa/invoke", PLAIN, {}),
    "ping at the end": ("GET", "/ping", None, {}),
    "unload the rest": ("DELETE", "/models/aa", None, {}),
    "unload the rest, too": ("DELETE", "/models/top", None, {}),
    "list at the end": ("GET", "/models", None, {}),
}


def redirect(to, body=None, **headers):
    return "POST", "/predict", body or b"", {REDIRECT: to, **headers}


VERTEX = {
    "health": ("GET", "/health", None, {}),
    "health by POST": ("POST", "/health", b"", {}),
    "predict": ("POST", "/predict", infer(id="7"), {"Content-Type": "application/json"}),
    "predict by GET": ("GET", "/predict", None, {}),
    "predict, no JSON": ("POST", "/predict", b"{", {}),
    "predict, unknown input": ("POST", "/predict", infer().replace(b"INPUT0", b"NOPE"), {}),
    **binary(VX_BINARY),
    "another path": ("GET", "/nope", None, {}),
    "the protocol's own path": ("GET", "/v2", None, {}),
    "redirect by GET": ("GET", "/predict", None, {REDIRECT: "v2"}),
    "redirect of health": ("GET", "/health", None, {REDIRECT: "v2"}),
    "redirect to nothing": redirect(""),
    "redirect to somewhere": redirect("v3"),
    "redirect with a slash": redirect("/v2"),
    "redirect to the server": redirect("v2"),
    "redirect to live": redirect("v2/health/live"),
    "redirect to ready": redirect("v2/health/ready"),
    "redirect to a model": redirect("v2/models/identity_int32"),
    "redirect to a model's version": redirect("v2/models/identity_int32/versions/1"),
    "redirect to an unknown model": redirect("v2/models/nope"),
    "redirect to a model's readiness": redirect("v2/models/identity_int32/ready"),
    "redirect to inference": redirect("v2/models/identity_int32/infer", infer()),
    "redirect to inference, unknown model": redirect("v2/models/nope/infer", infer()),
    "redirect to inference, binary": redirect("v2/models/identity_int32/infer", HEAD + ROW, **{"Content-Type": f"{VX_BINARY}{len(HEAD)}"}),
    "redirect to the index": redirect("v2/repository/index", b'{"ready":true}'),
    "redirect to generate": redirect("v2/models/identity_int32/generate", b"{}"),
    "redirect to the log settings": redirect("v2/logging", b"{}"),
    "redirect to the trace settings": redirect("v2/trace/setting", b"{}"),
    "redirect to a load": redirect("v2/repository/models/plain/load"),
    "redirect to an unload": redirect("v2/repository/models/plain/unload"),
    "redirect to a registration": redirect("v2/systemsharedmemory/region/a/register", b'{"key":"/nope","byte_size":1}'),
    "redirect to an unregistration": redirect("v2/systemsharedmemory/unregister"),
    "redirect to CUDA's unregistration": redirect("v2/cudasharedmemory/unregister"),
}

URL = r"Invalid \"url\" '.*': expected a path of the form \{root\}/<hash>/model\[/<subdir>\]"
MADE_EARLIER = "2.51 takes any path; 2.73 those alone that the platform makes, in these words"
NUMBER = "2.51 takes for 0 what is no number; 2.73 says what it is"
BINARY = {
    "binary, no number": (400, "Unable to parse inference header size, got: x", NUMBER),
    "binary, nothing": (400, "Unable to parse inference header size, got: $", NUMBER),
    "binary, too large a number": (400, "Unable to parse inference header size, value is out of range, got: 99999999999", NUMBER),
}
OURS = {
    "sagemaker": {
        **BINARY,
        "load, no JSON": (400, "failed to parse the request JSON buffer: Missing a name for object member. at 1", "the original ends"),
        "load, a name that is no string": (400, "attempt to access JSON non-string as string", "the original ends"),
        "load, not under the root": (400, URL, MADE_EARLIER),
        "load, out of the root": (400, URL, MADE_EARLIER),
        "load, a device": (400, URL, MADE_EARLIER),
        "load, of two parts": (400, URL, MADE_EARLIER),
        "load, a config that is wrong": (400, "failed to load 'broken', failed to poll from model repository: .*what", "the reason is told"),
        "invoke, no archive's name": (200, "OUTPUT0", "the model is known by the platform's name for it"),
        "invoke, another archive's name": (400, "model 'bb' was loaded as 'b.tar.gz', not as 'aa'", "the original runs that other model"),
    },
    "vertex": {
        **BINARY,
        **{f"redirect to {what}": (403, "^$", "2.73: a redirect changes nothing") for what in (
            "a load", "an unload", "a registration", "an unregistration", "CUDA's unregistration")},
    },
}
