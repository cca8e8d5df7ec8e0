"""Says what a model's file has, as JSON, without running it: source_facts.py FILE FOLDER..."""
import ast
import importlib.util
import json
import sys

# What the worker's runner brings.
OURS = {"triton_python_backend_utils", "c_python_backend_utils"}


def base_name(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def methods(name, classes, seen):
    """The methods of a class of the file, with whether they are async, and whether one of its bases is not in the file."""
    if name not in classes:
        return {}, name not in ("", "object")
    if name in seen:
        return {}, False
    seen.add(name)
    found, unknown = {}, False
    for base in classes[name].bases:
        more, elsewhere = methods(base_name(base), classes, seen)
        found.update(more)
        unknown = unknown or elsewhere
    for node in classes[name].body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = isinstance(node, ast.AsyncFunctionDef)
        elif isinstance(node, ast.Assign):
            found.update((t.id, False) for t in node.targets if isinstance(t, ast.Name))
    return found, unknown


def imported(tree):
    """The packages that the file can't do without: those imported at its top level, outside of try and if."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno


def there(name):
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def main(path, folders):
    with open(path, "rb") as f:
        source = f.read()
    said = {"python": "%d.%d.%d" % sys.version_info[:3]}
    try:
        tree = ast.parse(source, path)
    except (SyntaxError, ValueError) as e:
        said.update(error=getattr(e, "msg", str(e)), line=getattr(e, "lineno", 0) or 0)
        return said
    classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    names = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    said["model"] = "TritonPythonModel" in classes or "TritonPythonModel" in names or "*" in names
    found, unknown = methods("TritonPythonModel", classes, set())
    said["hooks"] = {name: found[name] for name in ("auto_complete_config", "initialize", "execute", "is_ready", "finalize") if name in found}
    said["unknown"] = unknown
    sys.path[:] = [p for p in sys.path if p] + folders
    missing = {}
    for name, line in imported(tree):
        if name not in OURS and name not in missing and not there(name):
            missing[name] = line
    said["missing"] = [{"name": name, "line": line} for name, line in missing.items()]
    return said


print(json.dumps(main(sys.argv[1], sys.argv[2:])))
