"""Identity behind a real Envoy: ext_authz decides as the gateway does, and what a client forges gets nowhere."""
import json

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import harness
from mesh import mesh  # noqa: F401  a fixture
from test_identity import make_key

POLICY = """rules:
- {principals: app, actions: [infer, read], models: "identity_*"}
- {principals: root, actions: admin}
"""
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


@pytest.fixture(params=["inside", "alone"])
def guarded(mesh, tmp_path, request):  # noqa: F811
    """A gateway behind Envoy and its keys; the control plane in the gateway or alone."""
    keys, lines = {}, ""
    for who in ("app", "root"):
        keys[who], line = make_key(who)
        lines += line
    (tmp_path / "keys").write_text(lines)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "proof").write_text("0123456789abcdef" * 3)
    (tmp_path / "id.yaml").write_text("api-keys: keys\nproxies: {trusted: 127.0.0.1, proof-key: proof}\n")
    flags = [f"--identity={tmp_path}/id.yaml", f"--policy={tmp_path}/policy.yaml"]
    return mesh(gateways=1, inside=request.param == "inside", topology={"services": {"authz": {"timeout": "5s"}}}, flags=[*flags, "--log-verbose=1"],
                xds_flags=flags), keys


def ask(m, path, body=None, headers=None):
    class Front:
        http = m.http
    return harness.Server.ask(Front, path, body, headers)


def test_ext_authz(guarded):
    m, keys = guarded
    infer = "/v2/models/identity_fp32/infer"
    assert ask(m, "/v2/health/ready")[0] == 200
    status, headers, body = ask(m, infer, BODY)
    assert (status, headers["www-authenticate"], headers["x-sluice-reason"]) == (401, "Bearer", "unauthenticated")
    direct = m.gateways[0].ask(infer, BODY)
    assert json.loads(body) == json.loads(direct[2]) == {"error": "'inference' on model 'identity_fp32' needs a caller who is known"}
    assert ask(m, infer, BODY, {"Authorization": "Bearer " + keys["app"]})[0] == 200
    status, headers, body = ask(m, "/v2/models/simple/infer", BODY, {"X-Api-Key": keys["app"]})
    assert (status, json.loads(body)) == (403, {"error": "'app' has no right to 'inference' on model 'simple'"})
    # names that only ext_authz may set are replaced by it
    forged = {"X-Sluice-Principal": "root", "X-Sluice-Proof": "v1.e30.AAAA", "X-Forwarded-Client-Cert": "URI=spiffe://mesh/root"}
    assert ask(m, infer, BODY, forged)[0] == 401
    assert ask(m, infer, BODY, {**forged, "X-Api-Key": keys["app"]})[0] == 200
    assert ask(m, "/v2/logging", None, {**forged, "X-Api-Key": keys["app"]})[0] == 403
    assert ask(m, "/v2/logging", None, {"X-Api-Key": keys["root"]})[0] == 200


def test_grpc(guarded):
    m, keys = guarded
    tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
    with grpcclient.InferenceServerClient(m.http) as c:
        assert c.infer("identity_fp32", [tensor], headers={"authorization": "Bearer " + keys["app"]}).as_numpy("OUTPUT0").tolist() == [[1, 2]]
        for headers, code, text in (({}, "UNAUTHENTICATED", "'inference' needs a caller who is known"),
                                    ({"x-api-key": "sluice_wrong"}, "UNAUTHENTICATED", "the API key is not known")):
            with pytest.raises(grpcclient.InferenceServerException) as e:
                c.infer("identity_fp32", [tensor], headers=headers)
            assert (e.value.status(), e.value.message()) == ("StatusCode." + code, text)
        with pytest.raises(grpcclient.InferenceServerException) as e:  # the model is in the message: the gateway refuses it
            c.infer("simple", [tensor], headers={"x-api-key": keys["app"]})
        assert (e.value.status(), e.value.message()) == ("StatusCode.PERMISSION_DENIED", "'app' has no right to 'inference' on model 'simple'")
    log = m.gateways[0].log()
    assert not [k for k in keys.values() if k in log or k in m.access.read_text()]


def test_nobody_names_himself(mesh):  # noqa: F811
    """Without ext_authz too what only the mesh may say of a call does not come from a client, by either protocol."""
    m = mesh(gateways=1)
    forged = {"x-sluice-principal": "mallory", "x-sluice-proof": "v1.mallory", "x-sluice-target": "mallory", "x-request-id": "forged"}
    assert ask(m, "/v2/models/identity_fp32/infer", BODY, forged)[0] == 200
    tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
    with grpcclient.InferenceServerClient(m.http) as c:
        assert c.infer("identity_fp32", [tensor], headers=forged).as_numpy("OUTPUT0").tolist() == [[1, 2]]
    harness.wait_for(lambda: m.access.read_text().count('"forged"') == 2, 20, "both calls in Envoy's log")
    assert "mallory" not in m.access.read_text()
