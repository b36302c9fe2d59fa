"""No code from data (reliability S1): the package holds no construct that could run what a file says. By syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .source_tree import source_files

FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve", "diskcache", "imp"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "execfile"}
# Attribute calls whatever the object is called: `tar.extractall`, `os.system`, `yaml.load`, `pa.PyExtensionType`.
FORBIDDEN_ATTRIBUTES = {
    "extractall", "unsafe_load", "full_load", "popen", "system", "getoutput", "getstatusoutput", "PyExtensionType",
    "unpack_archive",
}  # fmt: skip
# Loaders that are fine only with the named argument set as stated.
LOADERS = {
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
}


def findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for everything forbidden in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {a.name}") for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if not node.level and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
                yield node.lineno, f"from {node.module} import"
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.startswith("pipe:"):
                yield node.lineno, "a pipe: URL"
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[tuple[int, str]]:
    arguments = {keyword.arg: keyword.value for keyword in node.keywords}
    shell = arguments.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield node.lineno, "shell="
    pickled = arguments.get("allow_pickle")
    if pickled is not None and not (isinstance(pickled, ast.Constant) and pickled.value is False):
        yield node.lineno, "allow_pickle="
    if isinstance(node.func, ast.Name):
        if node.func.id in FORBIDDEN_CALLS:
            yield node.lineno, f"{node.func.id}()"
    elif isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value)
        if node.func.attr in FORBIDDEN_ATTRIBUTES:
            yield node.lineno, f"{owner}.{node.func.attr}()"
        if owner == "yaml" and node.func.attr == "load":
            yield node.lineno, "yaml.load()"
        if (owner, node.func.attr) in LOADERS:
            name, wanted = LOADERS[owner, node.func.attr]
            value = arguments.get(name)
            if not (isinstance(value, ast.Constant) and value.value is wanted):
                yield node.lineno, f"{owner}.{node.func.attr}() without {name}={wanted}"


def test_the_package_runs_no_code_from_data() -> None:
    hits = [f"{file.path}:{line}: {what}" for file in source_files() for line, what in findings(file.tree)]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "def f():\n    import dill",
        "eval(x)",
        "exec(text)",
        "subprocess.run(cmd, shell=True)",
        "subprocess.run(cmd, shell=flag)",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "numpy.load(path, allow_pickle=choice)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "tarfile.open(p).extractall('.')",
        "os.system('ls')",
        "open_url('pipe:cat x')",
    ],
)
def test_the_gate_sees(code: str) -> None:
    assert list(findings(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "yaml.safe_load(text)",
        "subprocess.run([a, b])",
    ],
)
def test_the_gate_lets_pass(code: str) -> None:
    assert not list(findings(ast.parse(code)))
