"""Checks KServe's resources by the models in KServe's own Python package, which are read, not imported: that wants a dozen
packages more. Fields of Kubernetes' types are left to Kubernetes' schemas (pods made of them)."""
import ast
import functools
import importlib.util
import pathlib
import re

PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": dict}


def folder():
    return pathlib.Path(importlib.util.find_spec("kserve").submodule_search_locations[0]) / "models"


@functools.cache
def models():
    """{class: (types, names)} of all models: attribute -> type, attribute -> name in YAML."""
    out = {}
    for path in folder().glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                maps = {t.id: ast.literal_eval(n.value) for n in node.body if isinstance(n, ast.Assign) for t in n.targets
                        if isinstance(t, ast.Name) and t.id in ("openapi_types", "attribute_map")}
                if len(maps) == 2:
                    out[node.name] = maps["openapi_types"], maps["attribute_map"]
    return out


def faults(value, kind, at=""):
    """What is wrong with value as a kind, as a list of texts."""
    if m := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            return [f"{at}: no list"]
        return [f for i, v in enumerate(value) for f in faults(v, m.group(1), f"{at}[{i}]")]
    if m := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict):
            return [f"{at}: no map"]
        return [f for k, v in value.items() for f in faults(v, m.group(1), f"{at}.{k}")]
    if kind in PLAIN:
        wrong = not isinstance(value, PLAIN[kind]) or kind == "int" and isinstance(value, bool)
        return [f"{at}: {value!r} is no {kind}"] if wrong else []
    if kind not in models():
        return []  # Kubernetes' own
    types, names = models()[kind]
    if not isinstance(value, dict):
        return [f"{at}: no {kind}"]
    attributes = {name: attribute for attribute, name in names.items()}
    out = []
    for name, v in value.items():
        if name not in attributes:
            out.append(f"{at}.{name}: {kind} has no such field")
        else:
            out += faults(v, types[attributes[name]], f"{at}.{name}")
    return out
