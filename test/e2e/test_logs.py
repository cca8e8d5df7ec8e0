"""The server's files: who may read them, what callers can make of them, and where lines are when they are moved."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import stat
import time

import grpc
import pytest

import harness

HEAD = re.compile(r"^[EWIV]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+\] \"")
INPUT = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}


def failing(text):
    """A request that its model fails with a text of the caller's choice: the server's fault, as far as it can know."""
    return json.dumps({"inputs": [INPUT], "parameters": {"fail": text}}).encode()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@contextlib.contextmanager
def serving(folder, *flags):
    """A server whose log is a file in folder, started with an umask that takes nothing away."""
    umask = os.umask(0)
    try:
        s = harness.Server(repositories=[harness.TEST_MODELS], flags=[f"--log-file={folder}/server.log", *flags])
    finally:
        os.umask(umask)
    try:
        yield s
        assert s.stop() == 0, "exit status after SIGTERM"
    finally:
        s.kill()


def post(server, bodies, path="/v2/models/identity_int32/infer"):
    """The statuses of requests on one connection."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    statuses = []
    for body in bodies:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses


def metric(server, name, **labels):
    total = 0
    for line in server.metrics_text().splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def left_out(text):
    return sum(int(n) for n in re.findall(r'"log lines were left out" lines=(\d+)', text))


def test_files_are_not_for_others(built, tmp_path):
    trace = tmp_path / "traces.json"
    with serving(tmp_path, f"--access-log={tmp_path}/access.log", "--trace-config=level=TENSORS",
                 "--trace-config=rate=1", f"--trace-config=triton,file={trace}") as s:
        assert post(s, [json.dumps({"inputs": [INPUT]})]) == [200]
        harness.wait_for(trace.exists, 5, "the trace file")
    modes = {p.name: oct(mode(p)) for p in tmp_path.iterdir()}
    assert modes == {"server.log": "0o640", "access.log": "0o640", "traces.json": "0o600"}
    assert "TENSOR_QUEUE_INPUT" in trace.read_text()


def test_what_callers_get_wrong_is_counted_and_no_error_line(built, tmp_path):
    log = tmp_path / "server.log"
    with serving(tmp_path) as s:
        before = log.stat().st_size
        wrong = [b"{", b"x" * 2000, b'{"inputs":3}', b'{"id":3}', b'{"inputs":[{"name":"\xff' + b"n" * 2000]
        n = 400
        assert set(post(s, wrong * n)) == {500}  # as Triton answers
        for path in ("/v2/repository/index", "/v2/logging", "/v2/trace/setting", "/v2/repository/models/plain/load",
                     "/v2/systemsharedmemory/region/r/register"):
            assert post(s, [b"{"] * 20, path) == [500] * 20, path
        with grpc.insecure_channel(s.grpc) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(20):
                with pytest.raises(grpc.RpcError) as e:
                    call(b"\xff\xff\xff", timeout=10)
                assert e.value.code() == grpc.StatusCode.INTERNAL
        said = log.read_text()[before:]
        assert said == "", said[:1000]
        assert metric(s, "sluice_calls_total", protocol="http", outcome="invalid") == n * len(wrong) + 100
        assert metric(s, "sluice_calls_total", protocol="grpc", outcome="invalid") == 20
        assert metric(s, "sluice_calls_total", outcome="failed") == 0
        # who asks for them gets them
        assert s.ask("/v2/logging", b'{"log_verbose_level":1}')[0] == 200
        assert post(s, [b"{"]) == [500]
        harness.wait_for(lambda: "request failed" in log.read_text(), 5, "a verbose line")
        line, = [x for x in log.read_text().splitlines() if "request failed" in x]
        assert line.startswith("V"), line


def test_flood_of_faults_is_bounded_and_counted(built, tmp_path):
    log, rate, calls = tmp_path / "server.log", 20, 2000
    with serving(tmp_path, f"--log-rate={rate}") as s:
        forged = "boom\nE1122 00:00:00.000000 1 forged.go:1] \"forged\"\r\x1b[2J" + "x" * 20000
        begin = time.monotonic()
        assert set(post(s, [failing(forged)] * calls)) == {500}
        took = time.monotonic() - begin

        def told():
            text = log.read_text()
            return text.count('"request failed"') + left_out(text) == calls
        harness.wait_for(told, 5, "every line there, or said to be left out")
        text = log.read_text()
        shown = text.count('"request failed"')
        assert shown <= 10 * rate + rate * (took + 1), f"{shown} lines in {took:.1f} s"
        lines = [x for x in text.splitlines() if "request failed" in x or "left out" in x]
        assert all(HEAD.match(x) and len(x) <= 4096 for x in lines)
        assert not [x for x in text.splitlines() if "forged.go" in x.split("]")[0]], "a caller forged a line"
        assert metric(s, "sluice_log_lost_total", level="error", why="rate") == calls - shown
        assert metric(s, "sluice_calls_total", protocol="http", outcome="failed") == calls


def test_no_line_is_lost_or_torn_when_files_are_moved(built, tmp_path):
    """logrotate renames the files and sends SIGHUP while calls fail; a log that is full moves itself away as well."""
    threads, each, moves = 4, 150, 3
    with serving(tmp_path, "--log-rate=0", "--log-file-max-byte-size=30000", "--log-file-keep=100",
                 f"--access-log={tmp_path}/access.log") as s:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(post, s, [failing(f"call-{t}-{i}.") for i in range(each)]) for t in range(threads)]
            for n in range(moves):
                time.sleep(0.05)
                for name in ("server.log", "access.log"):
                    if (tmp_path / name).exists():
                        (tmp_path / name).rename(tmp_path / f"{name}.moved-{n}")
                s.process.send_signal(signal.SIGHUP)
                for name in ("server.log", "access.log"):
                    harness.wait_for((tmp_path / name).exists, 5, f"a new {name}")
            for r in running:
                assert set(r.result()) == {500}
    wanted = {f"call-{t}-{i}." for t in range(threads) for i in range(each)}
    server = [x for p in tmp_path.glob("server.log*") for x in p.read_text().splitlines() if "request failed" in x]
    assert all(HEAD.match(x) and x.count("request failed") == 1 for x in server)
    assert sorted(re.search(r"call-\d+-\d+\.", x)[0] for x in server) == sorted(wanted)
    access = [json.loads(x)["error"] for p in tmp_path.glob("access.log*") for x in p.read_text().splitlines()
              if "call-" in x]
    assert sorted(re.search(r"call-\d+-\d+\.", x)[0] for x in access) == sorted(wanted)
    assert len(list(tmp_path.glob("server.log.[0-9]*"))) >= 1, "nothing was moved away for its size"
    assert {oct(mode(p)) for p in tmp_path.iterdir()} == {"0o640"}


def test_a_log_takes_so_much_of_the_disk(built, tmp_path):
    with serving(tmp_path, "--log-rate=0", "--log-file-max-byte-size=20000", "--log-file-keep=2") as s:
        assert set(post(s, [failing("x" * 3000)] * 300)) == {500}
        files = list(tmp_path.iterdir())
        assert {p.name for p in files} == {"server.log", "server.log.1", "server.log.2"}
        assert sum(p.stat().st_size for p in files) < 3 * (20000 + 4096)
