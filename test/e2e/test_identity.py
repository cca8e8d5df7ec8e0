"""Who calls and what they may do: every route with every caller, keys, tokens, certificates, restricted APIs, and no secret anywhere."""
import base64
import gzip
import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import harness
from certificates import authority, certificate, openssl

POLICY = """rules:
- {principals: app, actions: infer, models: "identity_*"}
- {principals: app, actions: metadata}
- {principals: reader, actions: read, models: identity_int32}
- {groups: ops, actions: [control, trace]}
- {principals: root, actions: admin}
- {principals: watcher, actions: [metrics, shared-memory, logging]}
- {principals: ["jwt:carol", "spiffe://mesh/app"], actions: infer}
"""
RIGHTS = {  # the same for the test: "!" is changes only, "?" reading only
    "": {"health"},
    "app": {"health", "inference", "metadata"},
    "reader": {"health", "metadata", "model-config", "statistics", "?model-repository"},
    "oncall": {"health", "!model-repository", "trace"},
    "watcher": {"health", "metrics", "shared-memory", "logging"},
    "root": {"health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace", "logging", "metrics"},
    "forger": {"health"},
}
INFER = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}]}).encode()
GATEWAY = harness.ROOT / "gateway"


def make_key(name, *flags):
    """An API key and its line, by the command."""
    done = subprocess.run([harness.BINARY, "keys", "new", name, *flags], capture_output=True, text=True, check=True, timeout=20)
    return done.stderr.strip(), done.stdout


def may(who, action, change):
    rights = RIGHTS[who]
    return action in rights or (("!" if change else "?") + action) in rights


@pytest.fixture(scope="module")
def matrix(built, tmp_path_factory):
    """{transport: server}, {caller: key}, the folder of the files"""
    folder = tmp_path_factory.mktemp("identity")
    keys, lines = {"": "", "forger": "sluice_" + "A" * 43}, ""
    for who in RIGHTS:
        if who not in keys:
            keys[who], line = make_key(who, *(["--groups=ops"] if who == "oncall" else []), *(["--tenant=blue"] if who == "root" else []))
            lines += line
    (folder / "keys").write_text(lines)
    (folder / "policy.yaml").write_text(POLICY)
    servers = {}
    try:
        for transport in ("sluice", "library"):
            servers[transport] = harness.Server(flags=[
                f"--api-keys={folder}/keys", f"--policy={folder}/policy.yaml", f"--http-transport={transport}", f"--grpc-transport={transport}",
                "--model-control-mode=explicit", "--load-model=identity_int32", "--log-verbose=1"])
        yield servers, keys, folder
    finally:
        for s in servers.values():
            s.kill()


def lines(path):
    return [line.split(" ") for line in (GATEWAY / path).read_text().splitlines()]


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_http_matrix(matrix, transport):
    """Every route, every caller: what is refused is refused with 401 or 403, what is not is anything else."""
    server, keys, _ = matrix[0][transport], matrix[1], matrix[2]
    wrong = []
    for method, path, action, change, _ in lines("httpapi/testdata/routes.txt"):
        path = path.replace("/m/", "/identity_int32/").removesuffix("/m") + ("/identity_int32" if path.endswith("/m") else "")
        for who, key in keys.items():
            if action == "model-repository" and change == "true" and may(who, action, True):
                continue  # it would be done: test_control
            headers = {"X-Api-Key": key} if key else {}
            body = (INFER if action == "inference" else b"{}") if method == "POST" else None
            status, got, answer = server.ask(path, body, headers, method)
            want = (may(who, action, change == "true"), 401 if who in ("", "forger") else 403)
            if (status not in (401, 403)) != want[0] or not want[0] and (status != want[1] or "error" not in json.loads(answer)):
                wrong.append((method, path, who, status, answer[:100], want))
            if status == 401 and got["WWW-Authenticate"] != "Bearer":
                wrong.append((method, path, who, dict(got)))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_grpc_matrix(matrix, transport):
    server, keys, _ = matrix[0][transport], matrix[1], matrix[2]
    wrong = []
    with grpc.insecure_channel(server.grpc) as channel:
        for path, action, change in lines("grpcapi/testdata/methods.txt"):
            for who, key in keys.items():
                if action == "model-repository" and change == "true" and may(who, action, True):
                    continue
                # an empty message names no model, so the action alone decides
                call = channel.stream_stream(path)(iter([b""]), timeout=10, metadata=[("authorization", "Bearer " + key)] if key else [])
                try:
                    if path.endswith(("/Watch", "/StreamCoreMetrics")):  # they do not end
                        next(call)
                        call.cancel()
                    else:
                        list(call)
                except grpc.RpcError:
                    pass
                code = call.code()
                allowed = may(who, action, change == "true")
                refused = {grpc.StatusCode.UNAUTHENTICATED if who in ("", "forger") else grpc.StatusCode.PERMISSION_DENIED}
                if (code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)) != allowed or not allowed and code not in refused:
                    wrong.append((path, who, code, call.details(), allowed))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_models(matrix, transport):
    """Rights on models, over both protocols; lists show what the caller may see."""
    server, keys, _ = matrix[0][transport], matrix[1], matrix[2]
    app, reader, root = ({"X-Api-Key": keys[k]} for k in ("app", "reader", "root"))
    assert server.ask("/v2/models/identity_int32/infer", INFER, app)[0] == 200
    status, _, body = server.ask("/v2/models/simple/infer", INFER, app)
    assert (status, json.loads(body)) == (403, {"error": "'app' has no right to 'inference' on model 'simple'"})
    names = {who: {m["name"] for m in json.loads(server.ask("/v2/repository/index", b"{}", h)[2])} for who, h in (("reader", reader), ("root", root))}
    assert names["reader"] == {"identity_int32"} and len(names["root"]) > 5
    with grpcclient.InferenceServerClient(server.grpc) as c:
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "INT32")
        tensor.set_data_from_numpy(np.array([[1, 2]], np.int32))
        token = {"authorization": "Bearer " + keys["app"]}
        assert c.infer("identity_int32", [tensor], headers=token).as_numpy("OUTPUT0").tolist() == [[1, 2]]
        with pytest.raises(grpcclient.InferenceServerException) as e:
            c.infer("simple", [tensor], headers=token)
        assert e.value.status() == "StatusCode.PERMISSION_DENIED" and e.value.message() == "'app' has no right to 'inference' on model 'simple'"
        index = c.get_model_repository_index(headers={"x-api-key": keys["reader"]}, as_json=True)
        assert [m["name"] for m in index["models"]] == ["identity_int32"]
        with pytest.raises(grpcclient.InferenceServerException, match="needs a caller who is known"):
            c.infer("identity_int32", [tensor])
    with httpclient.InferenceServerClient(server.http) as c:
        tensor = httpclient.InferInput("INPUT0", [1, 2], "INT32")
        tensor.set_data_from_numpy(np.array([[1, 2]], np.int32))
        assert c.infer("identity_int32", [tensor], headers=token).as_numpy("OUTPUT0").tolist() == [[1, 2]]


def test_control(matrix):
    """Those who have control load and unload."""
    server, keys, _ = matrix[0]["sluice"], matrix[1], matrix[2]
    ops = {"X-Api-Key": keys["oncall"]}
    assert server.ask("/v2/repository/models/identity_int8/load", b"{}", ops)[0] == 200
    assert server.ask("/v2/repository/models/identity_int8/unload", b"{}", ops)[0] == 200
    assert server.ask("/v2/repository/models/identity_int8/load", b"{}", {"X-Api-Key": keys["app"]})[0] == 403


def metrics_status(server, headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.metrics}/metrics", headers=headers), timeout=10) as r:
            return r.status
    except urllib.error.HTTPError as e:
        with e:
            json.loads(e.read())
            return e.code


def test_metrics(matrix):
    server, keys, _ = matrix[0]["sluice"], matrix[1], matrix[2]
    assert [metrics_status(server, {"X-Api-Key": keys[who]} if who else {}) for who in ("", "forger", "app", "watcher")] == [401, 401, 403, 200]


def test_reload(matrix):
    """A key and a right that are added count without a restart; a bad file changes nothing and is told in the log."""
    server, _, folder = matrix[0]["sluice"], matrix[1], matrix[2]
    key, line = make_key("late")
    asked = {"X-Api-Key": key}
    path = "/v2/models/identity_int32/infer"
    assert server.ask(path, INFER, asked)[0] == 401
    (folder / "keys").write_text((folder / "keys").read_text() + line)
    harness.wait_for(lambda: server.ask(path, INFER, asked)[0] == 403, 10, "the key known")
    (folder / "policy.yaml").write_text(POLICY + "- {principals: late, action: infer}\n")
    harness.wait_for(lambda: "did you mean 'actions'?" in server.log(), 10, "the fault told")
    assert server.ask(path, INFER, asked)[0] == 403
    (folder / "policy.yaml").write_text(POLICY + "- {principals: late, actions: infer}\n")
    harness.wait_for(lambda: server.ask(path, INFER, asked)[0] == 200, 10, "the right given")


def test_no_secret_shows(matrix):
    """After all of the above no key is in the command line, the log, or the metrics."""
    servers, keys, folder = matrix
    shown = ""
    for s in servers.values():
        shown += harness.cmdline(s.pid).decode() + s.log()
        with urllib.request.urlopen(urllib.request.Request(f"http://{s.metrics}/metrics", headers={"X-Api-Key": keys["root"]}), timeout=10) as r:
            shown += r.read().decode()
    digests = [word.removeprefix("sha256:") for word in (folder / "keys").read_text().split() if word.startswith("sha256:")]
    for secret in [k for k in keys.values() if k] + digests:
        assert secret not in shown
    assert "request failed" in shown  # refusals are in the log


class Collector:
    """Takes spans over OTLP/HTTP and keeps them as they came."""

    def __init__(self):
        self.bodies = bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self):
        return b"".join(self.bodies).decode("latin-1")


@pytest.mark.parametrize("mode", ["opentelemetry", "triton"])
def test_no_secret_is_traced(start, tmp_path, mode):
    """Spans, trace files, the access log and the log name callers, and nothing of what they showed."""
    collector, secret = Collector(), "restricted-" + "r" * 32
    key, line = make_key("app")
    (tmp_path / "keys").write_text(line)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "value").write_text(secret)
    flags = {"opentelemetry": [f"opentelemetry,url={collector.url}", "opentelemetry,bsp_schedule_delay=50"],
             "triton": [f"triton,file={tmp_path}/trace.json", "triton,log-frequency=1", "level=TIMESTAMPS", "level=TENSORS"]}[mode]
    s = start(flags=[f"--api-keys={tmp_path}/keys", f"--policy={tmp_path}/policy.yaml", f"--http-restricted-api=logging:ours=@{tmp_path}/value",
                     f"--access-log={tmp_path}/access", "--log-verbose=1", f"--trace-config=mode={mode}", "--trace-config=rate=1",
                     *(f"--trace-config={f}" for f in flags)])
    token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0." + "t" * 40
    sent = [({"X-Api-Key": key}, 200), ({"Authorization": "Bearer " + key}, 200), ({"Authorization": "Bearer " + token}, 401),
            ({"X-Api-Key": "sluice_" + "w" * 43}, 401), ({"X-Api-Key": key, "X-Sluice-Proof": "v1.proof-" + "p" * 40}, 200)]
    for headers, want in sent:
        assert s.ask("/v2/models/identity_int32/infer", INFER, headers)[0] == want
        assert s.ask("/v2/logging", None, {**headers, "ours": secret})[0] in (401, 403)
    tensor = grpcclient.InferInput("INPUT0", [1, 2], "INT32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.int32))
    with grpcclient.InferenceServerClient(s.grpc) as c:
        c.infer("identity_int32", [tensor], headers={"authorization": "Bearer " + key})
        with pytest.raises(grpcclient.InferenceServerException):
            c.infer("identity_int32", [tensor], headers={"authorization": "Bearer " + token})
    if mode == "opentelemetry":
        harness.wait_for(lambda: collector.text().count("InferRequest") >= 4, 20, "the spans")
    assert s.stop() == 0
    traced = collector.text() if mode == "opentelemetry" else "".join(p.read_text() for p in tmp_path.glob("trace.json*"))
    access = (tmp_path / "access").read_text()
    assert "identity_int32" in traced and access.count('"app"') >= 4
    shown = traced + access + s.log()
    for what in (key, key[7:], token, "t" * 40, "w" * 43, "p" * 40, secret, line.split("sha256:")[1][:64]):
        assert what not in shown


def raw(address, text):
    """The status line's code of the answer to bytes of HTTP/1.1."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as s:
        s.sendall(text.encode())
        return int(s.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_fields_given_twice(start, tmp_path, transport):
    """A trusted proxy that adds its line behind the client's does not let the client name itself; nor are two keys or tokens taken."""
    key, line = make_key("app")
    (tmp_path / "keys").write_text(line)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "id.yaml").write_text("api-keys: keys\nproxies: {trusted: 127.0.0.1}\n")
    s = start(flags=[f"--identity={tmp_path}/id.yaml", f"--policy={tmp_path}/policy.yaml", f"--http-transport={transport}", f"--grpc-transport={transport}"])
    app, other = "X-Forwarded-Client-Cert: URI=spiffe://mesh/app", "x-forwarded-client-cert: URI=spiffe://mesh/other"
    for fields, want in (([app], 200), ([other], 403), ([app, other], 401), ([other, app], 401), ([f"X-Api-Key: {key}"], 200),
                         ([f"X-Api-Key: {key}", "x-api-key: x"], 401), ([f"Authorization: Bearer {key}"] * 2, 401)):
        head = "".join(f + "\r\n" for f in fields)
        request = f"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(INFER)}\r\n{head}\r\n{INFER.decode()}"
        assert raw(s.http, request) == want, fields
    with grpc.insecure_channel(s.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        for metadata, want in (([("x-api-key", key)], "OK"), ([("x-api-key", key)] * 2, "UNAUTHENTICATED"),
                               ([("x-forwarded-client-cert", "URI=spiffe://mesh/app"), ("x-forwarded-client-cert", "URI=spiffe://x/y")], "UNAUTHENTICATED")):
            try:
                infer(b"", metadata=metadata, timeout=20)
                got = "OK"
            except grpc.RpcError as e:
                got = e.code().name
            assert got == want, metadata


def test_without_policy(start, tmp_path):
    """Open for inference; what can harm is for callers of this host, and not through a proxy on it."""
    flags = ["--model-control-mode=explicit", "--load-model=identity_int32", f"--http-unix-socket={tmp_path}/http"]
    s = start(flags=flags)
    proxied = {"X-Forwarded-For": "192.0.2.1"}
    load = "/v2/repository/models/identity_int8/load"
    assert s.ask("/v2/models/identity_int32/infer", INFER, proxied)[0] == 200
    assert s.ask("/v2/repository/index", b"{}", proxied)[0] == 200
    status, headers, body = s.ask(load, b"{}", proxied)
    assert (status, headers["X-Sluice-Reason"]) == (403, "not_local") and b"--allow-remote-control" in body
    assert s.ask("/v2/systemsharedmemory/status", None, proxied)[0] == 501  # of no region of this host
    assert s.ask(load, b"{}")[0] == 200
    done = subprocess.run([harness.BINARY, "models", "list", f"--url=unix://{tmp_path}/http"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "identity_int8" in done.stdout
    with grpcclient.InferenceServerClient(s.grpc) as c:
        with pytest.raises(grpcclient.InferenceServerException) as e:
            c.load_model("identity_int8", headers={"x-forwarded-for": "192.0.2.1"})
        assert e.value.status() == "StatusCode.PERMISSION_DENIED"
        c.load_model("identity_int8")
    s.kill()
    s = start(flags=[*flags, "--allow-remote-control"])
    assert s.ask(load, b"{}", proxied)[0] == 200


CATEGORIES = ["health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace", "logging"]


def test_restricted(start, tmp_path):
    """The original's restricted APIs: texts and codes are those that it gave when asked (2.51)."""
    (tmp_path / "value").write_text("from-a-file\n")
    flags = [f"--http-restricted-api={c}:k-{c}=v{c}" for c in CATEGORIES[1:]]
    flags += [f"--grpc-restricted-protocol={','.join(CATEGORIES)}:Admin=@{tmp_path}/value", "--metrics-config=counter_latencies=true"]
    s = start(flags=flags)
    for method, path, action, _, _ in lines("httpapi/testdata/routes.txt"):
        status, _, body = s.ask(path, b"{}" if method == "POST" else None, method=method)
        if action == "health":
            assert status != 403
            continue
        assert (status, json.loads(body)) == (403, {"error": f"This API is restricted, expecting header 'k-{action}'"}), path
        if action != "model-repository":
            assert s.ask(path, b"{}" if method == "POST" else None, {f"K-{action}": "v" + action}, method)[0] != 403
    assert s.ask("/v2", None, {"k-metadata": "Vmetadata"})[0] == 403
    with grpc.insecure_channel(s.grpc) as channel:
        for path, _, _ in lines("grpcapi/testdata/methods.txt"):
            call = channel.stream_stream(path)(iter([b""]), timeout=10)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert (call.code(), call.details()) == (grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header 'triton-grpc-protocol-Admin'"), path
    with grpcclient.InferenceServerClient(s.grpc) as c:
        assert c.is_server_live(headers={"triton-grpc-protocol-admin": "from-a-file"})
    assert "from-a-file" not in s.log() and "vmetadata" not in s.log()


@pytest.mark.parametrize("flag,text", [
    ("--http-restricted-api=foo:k=v", "unknown restricted api 'foo'"),
    ("--grpc-restricted-protocol=foo:k=v", "unknown restricted protocol 'foo'"),
    ("--http-restricted-api=health,health:k=v", "restricted api 'health' can not be specified in multiple config groups"),
    ("--http-restricted-api=health:k", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:k"),
])
def test_restricted_faults(built, flag, text):
    done = subprocess.run([harness.BINARY, "serve", "--model-repository=/nowhere", flag], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and text in done.stderr


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Publishes keys and signs tokens with them."""

    def __init__(self, folder):
        self.folder, self.kid, self.keys = folder, 0, []
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                answer = {"issuer": issuer.url, "jwks_uri": issuer.url + "/keys"} if "openid" in self.path else {"keys": issuer.keys}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.rotate()

    def rotate(self):
        """Another key in place of the one that there is."""
        self.kid += 1
        self.key = self.folder / f"key{self.kid}.pem"
        openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key)
        modulus = openssl("rsa", "-in", self.key, "-noout", "-modulus").decode().strip().removeprefix("Modulus=")
        self.keys = [{"kty": "RSA", "kid": str(self.kid), "use": "sig", "n": encode(bytes.fromhex(modulus)), "e": "AQAB"}]

    def token(self, name):
        head = encode(json.dumps({"alg": "RS256", "kid": str(self.kid)}).encode())
        body = encode(json.dumps({"iss": self.url, "aud": "sluice", "sub": name, "exp": int(time.time()) + 600}).encode())
        return f"{head}.{body}." + encode(openssl("dgst", "-sha256", "-sign", self.key, data=f"{head}.{body}".encode()))


def test_tokens_and_certificates(start, tmp_path):
    """Tokens of an issuer that rotates its keys, and client certificates, over both protocols; on both transports at once, since a
    server asks for keys that it has not every ten seconds at most."""
    issuer = Issuer(tmp_path)
    root = authority(tmp_path, "root")
    for name, names in (("server", "DNS:localhost"), ("app", "URI:spiffe://mesh/app"), ("other", "URI:spiffe://mesh/other")):
        certificate(tmp_path, name, root, names)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "id.yaml").write_text(f"tokens:\n- {{issuer: '{issuer.url}', audience: sluice}}\ncertificates: {{names: [spiffe]}}\n")
    tls = [f"--{p}-{flag}={tmp_path}/{name}" for p in ("http", "grpc")
           for flag, name in (("server-cert", "server.pem"), ("server-key", "server.key"), ("root-cert", "root.pem"))]
    servers = [start(flags=[f"--identity={tmp_path}/id.yaml", f"--policy={tmp_path}/policy.yaml", "--grpc-use-ssl=true", *tls, "--log-verbose=1",
                            f"--http-transport={transport}", f"--grpc-transport={transport}"], scheme="https") for transport in ("sluice", "library")]

    def ask(s, token=None, who=None):
        context = ssl.create_default_context(cafile=tmp_path / "root.pem")
        if who:
            context.load_cert_chain(tmp_path / f"{who}.pem", tmp_path / f"{who}.key")
        headers = {"Authorization": "Bearer " + token} if token else {}
        address = s.http.replace("127.0.0.1", "localhost")
        request = urllib.request.Request(f"https://{address}/v2/models/identity_int32/infer", data=INFER, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as r:
                return r.status
        except urllib.error.HTTPError as e:
            with e:
                return e.code

    first = issuer.token("carol")
    for s in servers:
        harness.wait_for(lambda: ask(s, first) == 200, 20, "the issuer's first key")
        assert [ask(s), ask(s, who="app"), ask(s, who="other"), ask(s, issuer.token("mallory"))] == [401, 200, 403, 403]
        assert ask(s, first[:-8] + "AAAAAAAA") == 401
    issuer.rotate()
    second = issuer.token("carol")
    harness.wait_for(lambda: [ask(s, second) for s in servers] == [200, 200], 30, "the issuer's second key")
    tensor = grpcclient.InferInput("INPUT0", [1, 2], "INT32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.int32))

    def infer(s, token=None, who=None):
        files = {"certificate_chain": f"{tmp_path}/{who}.pem", "private_key": f"{tmp_path}/{who}.key"} if who else {}
        target = s.grpc.replace("127.0.0.1", "localhost")
        with grpcclient.InferenceServerClient(target, ssl=True, root_certificates=f"{tmp_path}/root.pem", **files) as c:
            try:
                c.infer("identity_int32", [tensor], headers={"authorization": "Bearer " + token} if token else None)
                return "OK"
            except grpcclient.InferenceServerException as e:
                return e.status().removeprefix("StatusCode.")

    for s in servers:
        assert ask(s, first) == 401, "a token signed with a key that is gone"
        assert [infer(s, second), infer(s, who="app"), infer(s, who="other"), infer(s), infer(s, first)] == [
            "OK", "OK", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNAUTHENTICATED"]
        for secret in (first, second, first.rsplit(".", 1)[1]):
            assert secret not in s.log()


def test_tenants_share_no_answers(start, tmp_path):
    """Callers of two tenants get no answers of one another out of the cache; those of one do."""
    keys, text = {}, ""
    for who, tenant in (("a", "blue"), ("b", "blue"), ("c", "red")):
        keys[who], line = make_key(who, "--tenant", tenant)
        text += line
    (tmp_path / "keys").write_text(text)
    model = tmp_path / "models" / "cached"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "identity"\nmax_batch_size: 4\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }\n'
                                        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }\nresponse_cache { enable: true }\n')
    s = start([tmp_path / "models"], [f"--api-keys={tmp_path}/keys", "--cache-config=local,size=1048576"])
    hits = []
    for who in "abca":
        status, headers, _ = s.ask("/v2/models/cached/infer", INFER, {"X-Api-Key": keys[who]})
        assert status == 200
        hits.append("hit" in headers["Cache-Status"])
    assert hits == [False, True, False, True]


def test_policy_command(built, tmp_path):
    (tmp_path / "p.yaml").write_text(POLICY)

    def check(*args):
        done = subprocess.run([harness.BINARY, "policy", "check", f"{tmp_path}/p.yaml", *args], capture_output=True, text=True, timeout=20)
        return done.returncode, done.stdout

    assert check() == (0, f"{tmp_path}/p.yaml: good\n")
    assert check("--as=app", "--action=infer", "--model=identity_int32") == (0, "inference: allowed by the rule in line 2\n")
    assert check("--as=app", "--action=infer", "--model=mlp") == (1, "inference: denied, no rule gives it\n")

