"""The shape of the code base: who may import whom, sizes, docstrings, links, requirements."""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from mutations.__main__ import check_applies
from mutations.faults import FAULTS

from jaxformer.cli.main import COMMANDS
from jaxformer.config import Config, load_config, validate
from jaxformer.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxformer"
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
MAX_FOLDER_ENTRIES = 18
UNCOUNTED = ("__init__.py", "__pycache__")

# A package may import those before it.
PACKAGES = (
    "xla_flags",
    "errors",
    "checks",
    "extras",
    "io",
    "functional",
    "nn",
    "models",
    "optim",
    "data",
    "distributed",
    "hub",
    "zoo",
    "config",
    "checkpoints",
    "pretrained",
    "generation",
    "server",
    *(
        "flax",
        "training",
        "plan",
        "launch",
        "parity",
        "engines",
        "doctor",
        "lab",
        "cli",
        "__main__",
    ),
)
# All that someone has to install who wants the pure functions alone.
FUNCTIONAL_NEEDS = {"jax", "chex", "numpy"}

# Written beside exported weights, to run where PyTorch and transformers are.
RUNS_ELSEWHERE = "jaxformer.engines.custom_code.modeling_jaxformer"
# What only a comparison with transformers needs, and who makes it.
OPTIONAL = {
    "torch": (RUNS_ELSEWHERE, "jaxformer.parity.reference"),
    "transformers": ("jaxformer.parity.reference",),
}
# What the extra `serve` installs, for a command that says so.
SERVER = {"starlette"}

each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


@cache
def tree_of(path):
    return ast.parse(path.read_text())


@cache
def imports_of(path):
    """Dotted names of all that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules_in(names):
    """The modules of the package among dotted names of modules and of what is in them."""
    parents = {name: name if name in MODULES else name.rpartition(".")[0] for name in names}
    return {parent for parent in parents.values() if parent in MODULES}


def package_of(name):
    """`functional` for `jaxformer.functional.masks`; None for the package itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else None


# Imports ----------------------------------------------------------------------------------------


def test_imports_flow_one_way():
    for module, path in MODULES.items():
        package = package_of(module)
        ours = {name for name in imports_of(path) if name.startswith("jaxformer.")}
        used = {package_of(name) for name in ours} - {package, "__version__"}
        # What is public at the top is imported when it is asked for.
        allowed = PACKAGES[: PACKAGES.index(package)] if package else ("extras", "xla_flags")
        assert used <= set(allowed), f"{module} imports {used - set(allowed)}"


def test_no_two_modules_need_each_other():
    needs = {module: modules_in(imports_of(path)) for module, path in MODULES.items()}
    assert set(TopologicalSorter(needs).static_order()) == set(MODULES)


def test_pure_functions_need_only_jax_and_chex():
    files = [path for name, path in MODULES.items() if package_of(name) == "functional"]
    roots = {name.partition(".")[0] for path in files for name in imports_of(path)}
    assert roots - set(sys.stdlib_module_names) - {"jaxformer"} == FUNCTIONAL_NEEDS


# Sizes and words --------------------------------------------------------------------------------


def reason_for_length(lines):
    """What a comment `# long: ...` among these lines says, or None."""
    comments = (line.strip().removeprefix("# long:") for line in lines if "# long:" in line)
    return next((reason.strip() for reason in comments if reason.strip()), None)


def test_files_are_short_or_say_why_not():
    for path in MODULES.values():
        lines = path.read_text().splitlines()
        if len(lines) > MAX_FILE_LINES:
            docstring, *_ = tree_of(path).body
            after = lines[docstring.end_lineno : docstring.end_lineno + 3]
            assert reason_for_length(after), f"{path}: add `# long: reason` below the docstring"


def test_functions_are_short_or_say_why_not():
    nodes = [(path, node) for path in MODULES.values() for node in ast.walk(tree_of(path))]
    for path, node in nodes:
        if not isinstance(node, ast.FunctionDef):
            continue
        docstring = ast.get_docstring(node, clean=False)
        length = node.end_lineno - node.lineno + 1
        length -= len(docstring.splitlines()) if docstring else 0
        if length > MAX_FUNCTION_LINES:
            body = path.read_text().splitlines()[node.lineno - 1 : node.end_lineno]
            where = f"{path}:{node.lineno}: {node.name}"
            assert reason_for_length(body), f"{where}: add `# long: reason`"


def test_folders_are_small():
    for folder in (path for path in PACKAGE.rglob("*") if path.is_dir()):
        if folder.name == "__pycache__":
            continue
        entries = [path for path in folder.iterdir() if path.name not in UNCOUNTED]
        if folder.name != "zoo":  # a file for each published system
            assert len(entries) <= MAX_FOLDER_ENTRIES, folder


def public_members(module):
    """(name, object) of the public functions and classes of a module, and of their methods."""
    for name, member in vars(module).items():
        ours = getattr(member, "__module__", None) == module.__name__
        if name.startswith("_") or not ours or not callable(member):
            continue
        if not (inspect.isclass(member) or inspect.isroutine(inspect.unwrap(member))):
            continue
        yield name, member
        for inner, value in vars(member).items() if inspect.isclass(member) else ():
            is_method = inspect.isroutine(value) or isinstance(
                value, property | classmethod | staticmethod
            )
            if is_method and not inner.startswith("_"):
                yield f"{name}.{inner}", getattr(member, inner)


def test_everything_public_says_what_it_is():
    for module in set(MODULES) - {"jaxformer.__main__", RUNS_ELSEWHERE}:
        loaded = importlib.import_module(module)
        assert loaded.__doc__, module
        for name, member in public_members(loaded):
            # A method that overrides another inherits its docstring; what dataclass writes is none.
            text = inspect.getdoc(member)
            assert text, f"{module}.{name}"
            assert not text.startswith(f"{name}("), f"{module}.{name}"


def test_no_file_names_a_machine():
    places = re.compile(r"(?<![\w.])/(tmp|work|home|root|Users)/")
    texts = [*PACKAGE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *CONFIGS]
    for path in [*texts, *ROOT.glob("*.md"), *(ROOT / "benchmarks").iterdir()]:
        if path.is_file():
            assert not places.search(path.read_text()), path


# Experiments ------------------------------------------------------------------------------------


@each_config
def test_every_experiment_says_what_it_is_and_is_valid(path):
    assert len(ast.get_docstring(tree_of(path)).split(". ")[0]) > 20
    (get_config,) = (
        node
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_config"
    )
    assert ast.unparse(get_config.returns) == "Config"
    config = load_config(str(path))
    assert isinstance(config, Config)
    # Run as it stands on one device, or on as many as its mesh is fixed to.
    sizes = vars(config.mesh).values()
    devices = 1
    for size in sizes:
        devices *= max(size, 1)
    if config.model is not None:
        validate(config, devices)


@each_config
def test_an_experiment_uses_the_package_alone(path):
    roots = {name.partition(".")[0] for name in imports_of(path)}
    assert roots - set(sys.stdlib_module_names) == {"jaxformer"}


# Around the code --------------------------------------------------------------------------------


def requirements(name):
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("-r")]


def extras():
    """The requirements of each extra, with those of the extras that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["optional-dependencies"]

    def resolved(requirement):
        included = re.fullmatch(r"jaxformer\[(.+)\]", requirement)
        names = included[1].split(",") if included else ()
        return [each for name in names for each in resolved_all(name)] or [requirement]

    def resolved_all(name):
        return [each for requirement in listed[name] for each in resolved(requirement)]

    return {"": project["dependencies"]} | {name: resolved_all(name) for name in listed}


def test_requirements_txt_has_all_extras():
    found = extras()
    assert requirements("requirements.txt") == found[""] + found["all"]
    needed_to_compare = set(requirements("requirements-more.txt"))
    assert set(found["parity"]) - set(found["hub"]) <= needed_to_compare


def test_an_extra_that_is_missing_is_named():
    found = extras()
    for library, extra in EXTRAS.values():
        (needed,) = [line for line in found[extra] if re.match(rf"{library}\b(?!-)", line)]
        assert needed not in found[""]


def test_every_import_is_required():
    distributions = {
        "orbax-checkpoint": "orbax",
        "pillow": "PIL",
        "pyyaml": "yaml",
        "scikit-learn": "sklearn",
        "tensorboardx": "tensorboardX",
    }
    listed = {re.split(r"[<>=!~\[]", line)[0].strip() for line in requirements("requirements.txt")}
    required = {distributions.get(name.lower(), name) for name in listed}
    required.add("jaxlib")  # the other half of jax
    files = [*MODULES.values(), *CONFIGS, ROOT / "train.py"]
    roots = {name.partition(".")[0] for path in files for name in imports_of(path)}
    imported = roots - set(sys.stdlib_module_names) - {"jaxformer"}
    assert imported - set(OPTIONAL) - SERVER <= required
    for name, modules in OPTIONAL.items():
        used = [module for module, path in MODULES.items() if name in imports_of(path)]
        assert tuple(used) == modules, name


def documents():
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_the_documentation_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link = "".join(target)
        if not re.match(r"[a-z]+:", link):
            name, _, heading = link.partition("#")
            goal = (path.parent / name).resolve() if name else path
            assert goal.exists(), f"{path.name}: {link}"
            assert ROOT in goal.parents, f"{path.name}: {link}"
            if heading:
                assert heading in headings(goal), f"{path.name}: {link}"


def headings(path):
    titles = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_the_documentation_names_exist(path):
    pattern = r"`((?:jaxformer|configs|tests|docs|benchmarks)/[\w./-]+\.(?:py|md))`"
    for name in re.findall(pattern, path.read_text()):
        assert (ROOT / name).exists(), name


# Tests ------------------------------------------------------------------------------------------


def modules_used(path):
    """The package's modules that a file imports, by themselves or through what they define."""
    used = modules_in(imports_of(path))
    for name in imports_of(path):
        module, _, attribute = name.rpartition(".")
        if module == RUNS_ELSEWHERE:
            used.add(module)
        elif module in MODULES and name not in MODULES:
            used.add(getattr(getattr(importlib.import_module(module), attribute), "__module__", ""))
    return used


def defines_something(path):
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(tree_of(path)))


def test_every_module_is_used_by_a_test():
    # Commands, whose help a test shows, what tests import, and what that imports of its own
    # package: its private parts.
    reached = set()
    new = {f"jaxformer.cli.{place.partition(':')[0]}" for place, *_ in COMMANDS.values()}
    new = new.union(*(modules_used(path) for path in (ROOT / "tests").rglob("*.py")))
    # `zoo/__init__.py` imports the published systems by their names.
    zoo = [name for name in MODULES if package_of(name) == "zoo"]
    new |= {name for name in zoo if hasattr(importlib.import_module(name), "FORMATS")}
    while new := (new & set(MODULES)) - reached:
        reached |= new
        pairs = [(module, part) for module in new for part in modules_used(MODULES[module])]
        new = {part for module, part in pairs if package_of(part) == package_of(module)}
    unused = {name for name in set(MODULES) - reached if defines_something(MODULES[name])}
    assert unused <= {"jaxformer"}


def test_tests_are_collected_without_pytorch():
    for path in (ROOT / "tests").rglob("test_*.py"):
        at_once = [
            node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        for node in at_once:
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            assert not {name.partition(".")[0] for name in names} & set(OPTIONAL), path


def test_tests_live_where_the_code_does():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
    for path in (ROOT / "tests").iterdir():
        if path.is_dir() and any(path.glob("test_*.py")):
            assert path.name in PACKAGES


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.partition(":")[0])
def test_every_fault_can_be_seeded(fault):
    """If its line was rewritten, copy the new one: `tests/mutations/faults.py`."""
    check_applies(ROOT, [fault])


def test_every_package_has_a_fault():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == {fault.file.partition("/")[0] for fault in FAULTS}
