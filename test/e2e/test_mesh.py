"""The control plane against a real Envoy: the clients that people have, through the mesh."""
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from mesh import mesh  # noqa: F401  (a fixture)


def add_sub(module, count=16):
    """The inputs of `simple` and what it must answer."""
    a, b = np.arange(count, dtype=np.int32).reshape(1, count), np.ones((1, count), np.int32)
    inputs = []
    for name, values in (("INPUT0", a), ("INPUT1", b)):
        tensor = module.InferInput(name, values.shape, "INT32")
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    return inputs, a + b


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
def test_clients(mesh, delta):
    m = mesh(gateways=1, delta=delta)
    inputs, want = add_sub(httpclient)
    with httpclient.InferenceServerClient(m.http) as client:
        assert client.is_server_ready()
        assert (client.infer("simple", inputs).as_numpy("OUTPUT0") == want).all()
    inputs, want = add_sub(grpcclient)
    with grpcclient.InferenceServerClient(m.grpc) as client:
        assert client.is_server_ready()
        assert (client.infer("simple", inputs).as_numpy("OUTPUT0") == want).all()
