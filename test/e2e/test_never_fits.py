"""Requests that there will never be memory for: clients of all kinds get a refusal that says so, also those that send everything
before they read; what just fits is served."""
import asyncio
import http.client
import json
import subprocess

import aiohttp
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from shared_memory import model

MIB = 1 << 20
ARENA = 64 * MIB
PATH = "/v2/models/echo/infer"


@pytest.fixture(scope="module", params=["sluice", "library"])
def server(request, built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("never")
    model(folder, "echo", batch=0, datatype="INT8")
    s = harness.Server([folder], flags=[f"--request-arena-byte-size={ARENA}", f"--http-transport={request.param}", "--http-max-input-size=400000000",
                                        f"--grpc-transport={request.param}", "--response-arena-byte-size=268435456"])
    yield s
    assert s.stop() == 0, s.log()[-3000:]


def binary(size):
    """The JSON part and the headers of a binary request that wants little back."""
    head = json.dumps({"inputs": [{"name": "INPUT0", "shape": [size], "datatype": "INT8", "parameters": {"binary_data_size": size}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    return head, {"Inference-Header-Content-Length": str(len(head))}


def pieces(head, size):
    yield head
    for at in range(0, size, MIB):
        yield bytes(min(MIB, size - at))


def check(status, reason, text):
    assert status == 400 and reason == "too_large", (status, reason, text)
    assert b"never fits" in text or b"exceeds the maximum" in text, text


def standard_library(server, size, chunked):
    head, headers = binary(size)
    c = http.client.HTTPConnection(*server.http.split(":"), timeout=60)
    try:
        c.request("POST", PATH, body=pieces(head, size) if chunked else head + bytes(size), headers=headers, encode_chunked=chunked)
        answer = c.getresponse()
        return answer.status, answer.headers.get("X-Sluice-Reason"), answer.read()
    finally:
        c.close()


def curl(server, size, chunked, *args):
    head, headers = binary(size)
    command = ["curl", "-sS", "--max-time", "60", "-D", "/dev/stderr", "-o", "-", "-X", "POST", "--data-binary", "@-", *args,
               *(f"-H{k}: {v}" for k, v in headers.items()), f"http://{server.http}{PATH}"]
    if chunked:
        command.insert(1, "-HTransfer-Encoding: chunked")
    got = subprocess.run(command, input=head + bytes(size), capture_output=True, timeout=90)
    assert got.returncode == 0, got
    lines = got.stderr.decode().lower().split("\r\n")
    status = [int(line.split()[1]) for line in lines if line.startswith("http/")][-1]
    reason = [line.split(": ")[1] for line in lines if line.startswith("x-sluice-reason")]
    return status, reason[0] if reason else None, got.stdout


def curl_without_expect(server, size, chunked):
    return curl(server, size, chunked, "-HExpect:")


def curl_http2(server, size, chunked):
    if chunked:
        pytest.skip("HTTP/2 has no chunks")
    return curl(server, size, False, "--http2-prior-knowledge")


def asynchronous(server, size, chunked):
    async def run():
        head, headers = binary(size)

        async def body():
            for p in pieces(head, size):
                yield p

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
            async with session.post(f"http://{server.http}{PATH}", data=body() if chunked else head + bytes(size), headers=headers) as answer:
                return answer.status, answer.headers.get("X-Sluice-Reason"), await answer.read()
    return asyncio.run(run())


CLIENTS = [standard_library, curl, curl_without_expect, curl_http2, asynchronous]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("size", [ARENA + 1, 160 * MIB])
def test_never_fits(server, client, size, chunked):
    check(*client(server, size, chunked))


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [ARENA // 2 + MIB, ARENA - 2 * MIB])
def test_most_of_the_memory(server, size, chunked):
    """A request may have more than half of the memory, though it gets it in steps."""
    status, reason, text = standard_library(server, size, chunked)
    assert status == 200, (status, reason, text[:300])
    assert text.endswith(bytes(size))


def test_json_never_fits(server):
    """Some 70 MB of JSON stand for as many bytes of tensors."""
    c = http.client.HTTPConnection(*server.http.split(":"), timeout=60)
    n = ARENA + 1
    c.request("POST", PATH, body=b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"INT8","data":[%s0]}]}' % (n, b"0," * (n - 1)))
    answer = c.getresponse()
    check(answer.status, answer.headers.get("X-Sluice-Reason"), answer.read())
    c.close()


@pytest.mark.parametrize("module", [httpclient, grpcclient], ids=["http", "grpc"])
def test_triton_clients(server, module):
    with module.InferenceServerClient(server.http if module is httpclient else server.grpc) as c:
        def infer(size):
            tensor = module.InferInput("INPUT0", [size], "INT8")
            tensor.set_data_from_numpy(np.zeros(size, np.int8))
            return c.infer("echo", [tensor])
        assert infer(ARENA - 2 * MIB).as_numpy("OUTPUT0").size == ARENA - 2 * MIB
        with pytest.raises(InferenceServerException) as e:
            infer(ARENA + MIB)
        assert e.value.status() in ("400", "StatusCode.RESOURCE_EXHAUSTED", "StatusCode.INVALID_ARGUMENT"), (e.value.status(), e.value)
        assert any(t in str(e.value) for t in ("never fits", "exceeds the maximum", "larger than max")), e.value
        assert infer(1).as_numpy("OUTPUT0").tolist() == [0]
