"""Starts a real Prometheus for the tests, with the rules of deploy/prometheus, on an ephemeral port of the loopback address."""
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import harness

DEPLOY = harness.ROOT / "deploy" / "prometheus"


def program(name):
    """The path of prometheus or promtool; "" where there is none."""
    ours = harness.ROOT / ".cache" / "prometheus" / "usr" / "bin" / name
    return shutil.which(name) or (str(ours) if ours.exists() else "")


def missing():
    """Why there is no Prometheus here; "" when there is one."""
    return "" if program("prometheus") and program("promtool") else "no prometheus: scripts/setup.sh prometheus says why"


class Prometheus:
    """One prometheus that scrapes jobs, a dict of name to host:port or (host:port, path), every interval."""

    def __init__(self, jobs, interval="1s", rules=True):
        self.targets = len(jobs)
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-prometheus-")
        folder = pathlib.Path(self.folder.name)
        lines = ["global:", f"  scrape_interval: {interval}", f"  scrape_timeout: {interval}", f"  evaluation_interval: {interval}"]
        if rules:
            lines += ["rule_files:", f"- {DEPLOY}/rules.yml"]
        lines += ["scrape_configs:"]
        for name, target in jobs.items():
            address, path = target if isinstance(target, tuple) else (target, "/metrics")
            lines += [f"- job_name: {name}", f"  metrics_path: {path}", "  static_configs:", f"  - targets: ['{address}']"]
        (folder / "prometheus.yml").write_text("\n".join(lines) + "\n")
        self.log_path = folder / "log"
        self.address = f"127.0.0.1:{harness.free_port()}"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen([program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                             f"--web.listen-address={self.address}", "--enable-feature=exemplar-storage", "--log.level=warn"],
                                            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            harness.wait_for(self.ready, 30, "prometheus ready")
        except BaseException:
            print(self.log_path.read_text())
            self.stop()
            raise

    def ready(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2) as r:
                return r.status == 200
        except OSError:
            return False

    def api(self, path, **params):
        """The data of an API answer; a refusal is an AssertionError with its text."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(params)}", timeout=10) as r:
                return json.load(r)["data"]
        except urllib.error.HTTPError as e:
            with e:
                raise AssertionError(f"{path} {params}: {e.read().decode()}") from None

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def value(self, expression):
        """The sum of an instant vector's values; None where it is empty."""
        result = self.query(expression)
        return sum(float(s["value"][1]) for s in result) if result else None

    def names(self):
        """The names of all metrics that it has."""
        return set(self.api("label/__name__/values"))

    def scraped(self, times=2):
        """Waits until every target was scraped so many times again."""
        for _ in range(times):
            before = time.time()

            def all_after():
                active = self.api("targets", state="active")["activeTargets"]
                return len(active) == self.targets and all(t["health"] == "up" and _epoch(t["lastScrape"]) > before for t in active)

            harness.wait_for(all_after, 20, "every target scraped")  # the first targets are known after five seconds

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.folder.cleanup()


def _epoch(text):
    """Seconds of an RFC 3339 time with any number of decimals and any zone."""
    import datetime
    head, _, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    zone = rest[digits:] or "Z"
    whole = datetime.datetime.fromisoformat(head.rstrip("Z") + zone.replace("Z", "+00:00"))
    return whole.timestamp() + (float("0." + rest[:digits]) if digits else 0)
