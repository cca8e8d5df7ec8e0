"""Runs compose.yaml as processes, and says on standard output how it went: one JSON object.

    unshare --net --mount --pid --fork --kill-child --mount-proc python stack.py MODELS

It wants the namespaces that this command gives it: a network of its own, in which every port of the file is free, and
mounts of its own. Each service gets a root directory with what its image has, its mounts, its user, its environment and
its command, all from compose.yaml; names lead to addresses by /etc/hosts. What a container has and a process here lacks is
a network interface of its own, so the two gateways, which have the same ports, are told their addresses. Grafana is left
out, since there is none here. When it ends, everything ends with it.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test" / "deploy"), str(ROOT / "test" / "e2e")]

import harness  # noqa: E402
import jaeger  # noqa: E402
import prometheus  # noqa: E402
import reading  # noqa: E402

LEFT_OUT = {"grafana"}


def mount(*args):
    subprocess.run(["mount", *map(str, args)], check=True, timeout=10)


def bind(source, target, read_only=False):
    if pathlib.Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)
    if read_only:
        mount("-o", "remount,bind,ro", target)


class Service:
    def __init__(self, stack, name, spec, address):
        self.stack, self.name, self.spec, self.address = stack, name, spec, address
        self.root = stack.folder / "roots" / name
        self.log = stack.folder / f"{name}.log"
        self.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(spec.get("environment") or {})}
        self.process, self.complaint = None, ""

    @property
    def ours(self):
        return self.spec["image"].startswith("sluice-serve/")

    def make_root(self):
        """The root directory: the image's files, /proc, /dev, and the mounts of the file."""
        for d in ("proc", "dev", "etc", "tmp"):
            (self.root / d).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        if self.name.startswith("worker"):
            self.host("lib", "lib64", "usr/lib", "usr/lib64")
            bind(reading.WORKER, self.root / "usr/local/bin/sluice-worker")
            bind(ROOT / ".cache/onnxruntime/lib", self.root / "usr/local/bin/lib", read_only=True)
        elif self.ours:
            bind(reading.SLUICE, self.root / "usr/local/bin/sluice")  # and nothing else: it is from scratch
        else:
            self.host("lib", "lib64", "usr", "bin")
            for program in (harness.ROOT / ".cache/envoy", harness.ROOT / ".cache/redis", harness.ROOT / ".cache/jaeger", harness.ROOT / ".cache/prometheus"):
                if program.exists():
                    bind(program, self.root / "opt" / program.name, read_only=True)
        mount("--rbind", "/proc", self.root / "proc")
        mount("--rbind", "/dev", self.root / "dev")
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.root / "dev/shm")
        (self.root / "etc/hosts").write_text(self.stack.hosts)
        user, group = map(int, self.spec["user"].split(":"))
        for m in self.spec.get("volumes", []):
            source = pathlib.Path(m["source"])
            if m["type"] == "volume":
                source = self.stack.folder / "volumes" / m["source"]
                if not source.exists():
                    source.mkdir(parents=True)
                    os.chown(source, user, group)  # as Docker does by the image's folder
            elif source == ROOT / "models":
                source = self.stack.models
            bind(source, self.root / m["target"].lstrip("/"), m.get("read_only", False))

    def host(self, *folders):
        for f in folders:
            path = pathlib.Path("/") / f
            if path.is_symlink():
                (self.root / f).symlink_to(os.readlink(path))
            elif path.exists():
                bind(path, self.root / f, read_only=f != "usr/lib")

    def command(self):
        args = self.spec["command"]
        kind = self.name.rsplit("-", 1)[0]
        if kind == "worker":
            return ["/usr/local/bin/sluice-worker", *args]
        if self.ours:
            return ["/usr/local/bin/sluice", *args]
        if kind == "envoy":
            return ["/opt/envoy/envoy", *args[1:], "--concurrency", "1"]
        if kind == "redis":
            return [shutil.which("redis-server") or "/opt/redis/usr/bin/redis-server", *args[1:]]
        if kind == "prometheus":
            return [shutil.which("prometheus") or "/opt/prometheus/usr/bin/prometheus", *args]
        if kind == "jaeger":  # a build of its parts that takes other flags
            at = {k: next(a.split("=")[1] for a in args if a.startswith(k)) for k in ("--collector.otlp.grpc", "--collector.otlp.http", "--query.http-server")}
            return ["/opt/jaeger/jaeger", f"-otlp-grpc={at['--collector.otlp.grpc']}", f"-otlp-http={at['--collector.otlp.http']}", f"-query={at['--query.http-server']}"]
        raise AssertionError(f"no program for {self.name}")

    def chroot(self, *command, environment):
        return [shutil.which("chroot"), f"--userspec={self.spec['user']}", str(self.root), "/usr/bin/env" if not self.ours else command[0]] + (
            [f"{k}={v}" for k, v in environment.items()] + list(command) if not self.ours else list(command[1:]))

    def start(self):
        environment = {**self.environment}
        if self.name.startswith("gateway"):
            environment |= {f"SLUICE_{p}_ADDRESS": self.address for p in ("HTTP", "GRPC", "METRICS")}
        self.environment = environment
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.chroot(*self.command(), environment=environment), env=environment if self.ours else None,
                                            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def healthy(self):
        """By the file's own check; those that want wget are asked from here."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.text()[-2000:]}"
        test = self.spec["healthcheck"]["test"][1:]
        if test[0] == "wget" or self.name == "redis" and not shutil.which("redis-cli"):
            url = "http://127.0.0.1:16686/api/services" if self.name == "jaeger" else test[-1]
            if self.name == "redis":
                return "ready to accept" in self.text().lower()
            try:
                with urllib.request.urlopen(url, timeout=3) as r:
                    return r.status == 200
            except OSError:
                return False
        done = subprocess.run(self.chroot(*test, environment=self.environment), env=self.environment if self.ours else None,
                              capture_output=True, text=True, timeout=10)
        self.complaint = done.stderr
        return done.returncode == 0

    def wait_healthy(self):
        harness.wait_for(self.healthy, 60, Late(lambda: f"{self.name} healthy: {self.complaint}"))

    def stop(self):
        """SIGTERM and the time that the file gives; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(reading_seconds(self.spec["stop_grace_period"]))

    def text(self):
        return self.log.read_text(errors="replace")


def reading_seconds(text):
    return sum(int(n) * {"h": 3600, "m": 60, "s": 1}[u] for n, u in re.findall(r"(\d+)([hms])", text))


class Stack:
    def __init__(self, models):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-stack-"))
        self.folder.chmod(0o755)
        self.models = pathlib.Path(models)
        self.file = reading.compose()
        left_out = LEFT_OUT | ({"jaeger"} if jaeger.missing() else set()) | ({"prometheus"} if prometheus.missing() else set())
        names = [n for n in sorted(self.file["services"]) if n not in left_out]
        addresses = {n: f"127.0.1.{10 + i}" for i, n in enumerate(names)}
        self.hosts = "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items())
        self.services = {n: Service(self, n, self.file["services"][n], addresses[n]) for n in names}
        self.left_out = sorted(left_out)

    def up(self):
        """Starts each service once what it depends on is healthy."""
        subprocess.run(["mount", "--make-rprivate", "/"], check=True, timeout=10)
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", self.folder)
        loopback()
        for s in self.services.values():
            s.make_root()
        left = dict(self.services)
        while left:
            ready = [s for s in left.values() if not set(s.spec.get("depends_on") or {}) & set(left)]
            assert ready, f"a circle: {sorted(left)}"
            for s in ready:
                s.start()
            for s in ready:
                s.wait_healthy()
                del left[s.name]


def loopback():
    """Brings the interface lo of this network namespace up."""
    import fcntl
    import socket
    import struct
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(s.fileno(), 0x8914, request)  # SIOCSIFFLAGS


def infer(count):
    """Calls through Envoy with the public clients, over both protocols; how many answers were right."""
    import numpy as np
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient
    right = 0
    for module in (httpclient, grpcclient):
        with module.InferenceServerClient("127.0.0.1:10000") as client:
            for i in range(count):
                values = np.full((1, 16), i, np.int32)
                tensors = []
                for name in ("INPUT0", "INPUT1"):
                    t = module.InferInput(name, [1, 16], "INT32")
                    t.set_data_from_numpy(values)
                    tensors.append(t)
                right += (client.infer("simple", tensors).as_numpy("OUTPUT0") == 2 * values).all()
    return int(right)


def get(url):
    with urllib.request.urlopen(url, timeout=5) as r:
        return json.load(r)


def text(address):
    with urllib.request.urlopen(f"http://{address}:8002/metrics", timeout=5) as r:
        return r.read().decode()


def metric(address, name):
    return sum(float(l.rsplit(" ", 1)[1]) for l in text(address).splitlines() if l.startswith(name + "{"))


def main(models):
    began = time.monotonic()
    stack = Stack(models)
    out = {"left_out": stack.left_out}
    services = stack.services
    try:
        stack.up()
        out["up_seconds"] = round(time.monotonic() - began, 1)
        gateways = [services["gateway-1"], services["gateway-2"]]
        harness.wait_for(lambda: served() == 2, 20, "Envoy sends calls to both gateways")
        out["right"] = infer(40)
        out["each"] = [metric(g.address, "nv_inference_request_success") for g in gateways]
        logged = lambda: sum(l.startswith("{") and '"simple"' in l for g in gateways for l in g.text().splitlines())  # noqa: E731
        harness.wait_for(lambda: logged() >= 80, 10, Late(lambda: f"80 lines of access logs, there are {logged()}"))
        written = lambda: sum(l.startswith("{") and ("/simple/infer" in l or "/ModelInfer" in l) for l in services["envoy"].text().splitlines())  # noqa: E731
        harness.wait_for(lambda: written() >= 80, 20, Late(lambda: f"80 lines of Envoy's access log on its standard output, there are {written()}"))
        out["limits"] = ["sluice_limit_redis_up 1" in text(g.address) for g in gateways]
        out["lane"] = ["local_lane=true" in g.text() for g in gateways]
        if "jaeger" in services:
            wanted = {"envoy", "sluice"}
            harness.wait_for(lambda: any(wanted <= {p["serviceName"] for p in t["processes"].values()}
                                         for t in get("http://127.0.0.1:16686/api/traces?service=envoy&limit=20")["data"]), 20, "one trace of Envoy and gateway")
            out["trace"] = True
        if "prometheus" in services:
            def targets():
                return {t["scrapePool"] + " " + t["scrapeUrl"]: t["health"] for t in get("http://127.0.0.1:9090/api/v1/targets")["data"]["activeTargets"]}
            harness.wait_for(lambda: len(targets()) == 3 and set(targets().values()) == {"up"}, 20, Late(lambda: f"targets up: {targets()}"))
            out["targets"] = targets()
            out["rules"] = sum(len(g["rules"]) for g in get("http://127.0.0.1:9090/api/v1/rules")["data"]["groups"])
        # the worker dies and is started again, as `restart: unless-stopped` does
        services["worker"].process.kill()
        services["worker"].process.wait(10)
        services["worker"].start()
        for g in gateways:
            g.wait_healthy()
        harness.wait_for(lambda: served() == 2, 20, "both gateways serve again")
        out["right_after_restart"] = infer(20)
        out["stopped"] = {n: services[n].stop() for n in ("envoy", "gateway-1", "gateway-2", "worker", "control")}
    except BaseException:
        for s in services.values():
            if s.log.exists():
                sys.stderr.write(f"--- {s.name}\n{s.text()[-1200:]}\n")
        raise
    print(json.dumps(out))


class Late:
    """A text that is made when it is wanted."""

    def __init__(self, make):
        self.make = make

    def __str__(self):
        return self.make()


def served():
    """Gateways that Envoy finds healthy, for HTTP."""
    with urllib.request.urlopen("http://127.0.0.1:9901/clusters", timeout=5) as r:
        return sum(l.startswith("http/default::") and l.endswith("::health_flags::healthy") for l in r.read().decode().splitlines())


if __name__ == "__main__":
    main(sys.argv[1])
