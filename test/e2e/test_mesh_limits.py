"""Limits on callers at Envoy: its rate limit service answers from the same rules as the gateway."""
from mesh import mesh  # noqa: F401
from test_limits import ONE, repository


def test_envoy_asks_for_limits(mesh, tmp_path):  # noqa: F811
    """What is counted at Envoy is refused there, with the gateway's headers, and never reaches it; what the gateway counts is
    refused at Envoy once nothing is left, and nobody is charged twice."""
    limits = tmp_path / "limits.yaml"
    limits.write_text("rules:\n- {name: edge, at: envoy, models: edge, requests: 3/h}\n- {name: inner, models: inner, requests: 2/h}\n")
    m = mesh(gateways=1, inside=True, repositories=[repository(tmp_path / "models", edge=(0, 1), inner=(0, 1))],
             flags=[f"--limits-file={limits}"], topology={"services": {"rate_limit": {"timeout": "2s"}}})

    def edge():
        status, headers, _ = m.ask("/v2/models/edge/infer", ONE)
        return status, headers["X-Sluice-Reason"]

    answers = [edge() for _ in range(5)]
    assert answers == [(200, None)] * 3 + [(429, "rate_limited")] * 2, answers
    status, headers, _ = m.ask("/v2/models/edge/infer", ONE)
    assert status == 429 and 1000 < int(headers["Retry-After"]) <= 1200 and headers["x-ratelimit-limit"], dict(headers)
    assert m.gateways[0].ask("/v2/models/edge/infer", ONE)[0] == 200, "the gateway does not count it"
    assert m.ask("/v2/models/edge/config")[0] == 200

    answers = [m.ask("/v2/models/inner/infer", ONE)[0] for _ in range(4)]
    assert answers == [200, 200, 429, 429], answers
    refused = [line for line in m.gateways[0].metrics_text().splitlines() if line.startswith("sluice_limit_refusals_total") and 'rule="inner"' in line]
    assert refused == ['sluice_limit_refusals_total{limit="requests",reason="rate_limited",rule="inner"} 2'], refused


def test_fleet_shares_limits_with_its_control_plane(mesh, tmp_path, redis):  # noqa: F811
    """Two gateways and a control plane of its own share limits through Redis: each call counts once, wherever it is counted."""
    limits = tmp_path / "limits.yaml"
    limits.write_text("rules:\n- {name: edge, at: envoy, models: edge, requests: 3/h}\n- {name: inner, models: inner, requests: 5/h}\n")
    flags = [f"--limits-file={limits}", f"--limits-redis=host=127.0.0.1,port={redis.port},budget=1000"]
    m = mesh(gateways=2, repositories=[repository(tmp_path / "models", edge=(0, 1), inner=(0, 1))], flags=flags, xds_flags=flags,
             topology={"services": {"rate_limit": {"timeout": "2s"}}})
    for model, passes in (("edge", 3), ("inner", 5)):
        answers = [m.ask(f"/v2/models/{model}/infer", ONE)[0] for _ in range(10)]
        assert answers.count(200) == passes and answers.count(429) == 10 - passes, answers
    assert all(g.ask("/v2/models/inner/infer", ONE)[0] == 429 for g in m.gateways)
