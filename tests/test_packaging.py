"""What is installed is what the tree holds: packages, YAML presets, and no generic top-level name."""

import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {  # of the tree -> package
    "rlfw": "rlfw",
    "algorithms": "rlfw.algorithms",
    "envs": "rlfw.envs",
    "experiments": "rlfw.experiments",
}
PRESETS = {"algorithm": ROOT / "algorithms", "env": ROOT / "envs"}

# Run with an installed rlfw from a folder that is not the repository's.
TRY = """
import importlib.util
import rlfw
from rlfw import registry
from rlfw.config import compose, experiment_path
from rlfw.study import declaration

registry.load_components()
for axis in registry.AXES:
    print("part", axis, *registry.names(axis))
for group in registry.PRESETS:
    print("preset", group, *registry.presets(group))
compose(["algorithm=ppo", "env=cartpole"])
assert declaration.read(experiment_path("ppo_details")).seeds == 10
for name in ("algorithms", "envs", "tests", "experiments", "benchmarks"):
    assert importlib.util.find_spec(name) is None, f"{name} leaks"
print("at", rlfw.__file__)
"""


def package_of(folder: Path) -> str:
    top, *rest = folder.relative_to(ROOT).parts
    return ".".join([FOLDERS[top], *rest])


def files(pattern: str) -> list[Path]:
    """Those of the packages; what lies below experiments/ is results."""
    return [path for top in FOLDERS for path in (ROOT / top).glob(pattern if top == "experiments" else f"**/{pattern}")]


def test_every_folder_with_an_init_is_a_listed_package():
    assert sorted(package_of(path.parent) for path in files("__init__.py")) == sorted(SETUPTOOLS["packages"])


def test_every_yaml_is_package_data():
    for path in files("*.yaml"):
        patterns = SETUPTOOLS["package-data"].get(package_of(path.parent), [])
        assert any(fnmatch(path.name, pattern) for pattern in patterns), f"{path} is in no wheel"


def test_every_template_of_a_page_is_package_data():
    for path in (path for path in (ROOT / "rlfw" / "report").iterdir() if path.suffix not in (".py", "")):
        assert any(fnmatch(path.name, pattern) for pattern in SETUPTOOLS["package-data"]["rlfw.report"]), path


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, cwd=source)
    return next(out.iterdir())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository without what earlier builds and runs left, which a build would pack."""
    left = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "runs")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("copy") / "tree", ignore=left))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    archive = build("sdist", tree, tmp_path_factory.mktemp("sdist"))
    out = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(archive, out)
    return next(out.iterdir())


def try_it(folder: Path, *what: object) -> Path:
    """Install ``what`` in a new venv that sees this one's dependencies, try it from elsewhere; where rlfw lies."""
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A path in a .pth file is searched last, and the .pth files there (an editable rlfw's) are not read.
    (site / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--ignore-installed"]
    run(*pip, "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=folder)
    lines = [line.split() for line in run(python, "-c", TRY, cwd=folder).splitlines()]
    for kind, axis, *names in lines[:-1]:
        assert names, f"no {kind} on {axis}"
        if kind == "preset":
            assert sorted(names) == sorted(path.stem for path in PRESETS[axis].glob("*.yaml"))
    return Path(lines[-1][1])


@pytest.mark.medium
@pytest.mark.parametrize("origin", ["tree", "sdist"])
def test_a_wheel_works_outside_the_repository(origin: str, request: pytest.FixtureRequest, tmp_path: Path):
    """Built from the repository and from the source distribution alike, the YAML included."""
    wheel = build("wheel", request.getfixturevalue(origin), tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    assert {name.split("/")[0] for name in held if ".dist-info" not in name} == {"rlfw"}
    expected = [f"{package_of(path.parent).replace('.', '/')}/{path.name}" for path in files("*.yaml")]
    assert set(expected) <= set(held)
    assert (tmp_path / "venv") in try_it(tmp_path, wheel).parents


@pytest.mark.medium
def test_an_sdist_installs_outside_the_repository(sdist: Path, tmp_path: Path):
    assert {"LICENSE", "README.md", "constraints.txt", "tests"} <= {path.name for path in sdist.iterdir()}
    assert (tmp_path / "venv") in try_it(tmp_path, sdist).parents


@pytest.mark.medium
def test_an_editable_install_works_outside_the_repository(tree: Path, tmp_path: Path):
    assert tree in try_it(tmp_path, "--editable", tree).parents
