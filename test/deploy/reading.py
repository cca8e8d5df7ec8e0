"""Reads what lies under deploy/ with the parsers of those who run it: Compose, kustomize, Kubernetes' schemas, hadolint."""
import functools
import json
import pathlib
import re
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test"))

DEPLOY = ROOT / "deploy"
SLUICE = ROOT / "bin" / "sluice"
WORKER = ROOT / "bin" / "sluice-worker"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


@functools.cache
def tool(name):
    """The path of a program of test/deploy, built when it is not."""
    path = ROOT / ".cache" / "deploy" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["go", "build", "-o", path, "."], cwd=ROOT / "test" / "deploy" / name, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return path


def run(*command, **kwargs):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, **kwargs)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def compose():
    """compose.yaml as Docker Compose understands it."""
    return json.loads(run(tool("compose"), ROOT / "compose.yaml", cwd=ROOT))


@functools.cache
def kustomized(form):
    """The objects of deploy/kubernetes/FORM, as kubectl apply -k would send them."""
    return list(yaml.safe_load_all(run(tool("kustomize"), DEPLOY / "kubernetes" / form)))


def documents(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def pin(name, requirements):
    """The version of a package in requirements/REQUIREMENTS.txt."""
    text = (ROOT / "requirements" / f"{requirements}.txt").read_text()
    return re.search(rf"^{re.escape(name)}==([^ \\\n]+)", text, re.M).group(1)


def stages():
    """{name: its instructions} of the Dockerfile, continuation lines joined; FROM is the first of each."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    out, name = {}, None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if m := re.match(r"FROM (\S+) AS (\S+)$", line):
            name = m.group(2)
            out[name] = []
        out[name].append(line.strip())
    return out


def images():
    """(where, image) of all images that are named anywhere in deploy/ and compose.yaml."""
    found = [("compose.yaml: " + n, s["image"]) for n, s in compose()["services"].items()]
    for path in [*DEPLOY.glob("kubernetes/*/*.yaml"), *DEPLOY.glob("kserve/*.yaml")]:
        found += [(path.relative_to(ROOT).as_posix(), m) for m in re.findall(r"^\s*(?:- )?image: (\S+)$", path.read_text(), re.M)]
    for name, lines in stages().items():
        image = lines[0].split()[1]
        if image not in stages() and image != "scratch":
            found.append(("Dockerfile: " + name, image))
    return found
