"""The extras and the files of constraints agree, and what an extra is for works where it is installed.

`make extras` asks the package index whether all can be installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster.cluster_options import PROTOCOLS

ROOT = Path(__file__).resolve().parent.parent


def pins(name: str) -> dict[str, str]:
    """Return the versions of a file of constraints by name."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.fixture(scope="module")
def extra() -> set[str]:
    """Return the names of what the extra for GPUs asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.match(r"[\w.-]+", requirement) for requirement in project["optional-dependencies"]["cuda"]}
    return {found.group() for found in names if found}


def test_the_extra_for_gpus_has_what_its_workers_use(extra: set[str]) -> None:
    assert any(name.startswith("rmm-cu") for name in extra), "workers are given a pool of device memory"
    assert any(name.startswith("distributed-ucxx-cu") for name in extra), "--protocol ucx asks for it"


def test_machines_with_gpus_differ_by_dask_and_what_the_extra_brings(extra: set[str]) -> None:
    plain, cuda = pins("constraints.txt"), pins("constraints-cuda.txt")
    assert extra - {"giaann-dask"} <= set(cuda)
    assert {name for name in plain if cuda.get(name) != plain[name]} == {"dask", "distributed"}
    assert cuda["dask"] == cuda["distributed"]


def specifiers(lines: list[str]) -> dict[str, SpecifierSet]:
    """Return the versions that requirements allow, by name."""
    found = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])? ?([^;#]*).*", line.strip()) for line in lines]
    return {each.group(1): SpecifierSet(each.group(2).strip()) for each in found if each}


def test_the_conda_environment_allows_what_pip_installs() -> None:
    """Conda's channels are not asked; the ranges hold the pinned versions, and are those of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = specifiers([*project["dependencies"], f"python{project['requires-python']}"])
    listed = (ROOT / "environment.yml").read_text(encoding="utf-8").partition("dependencies:")[2].splitlines()
    names = {"pytorch": "torch", "prometheus_client": "prometheus-client"}
    lines = [found.group(1) for line in listed if (found := re.fullmatch(r" +- (\w[^:]*)", line))]
    conda = {names.get(name, name): allowed for name, allowed in specifiers(lines).items()}
    assert {name: conda.get(name) for name in required} == required, "the ranges of pyproject.toml"
    assert any(line.startswith("dask-cuda") and "# GPU" in line for line in lines)
    plain, cuda = pins("constraints.txt"), pins("constraints-cuda.txt")
    for name, allowed in conda.items():
        # On a machine without a GPU the marked lines are removed.
        versions = [pinned[name] for pinned in (plain, cuda) if name in pinned]
        assert all(version in allowed for version in versions), (name, versions)
    assert cuda["dask-cuda"] in conda["dask-cuda"]


def test_the_conda_recipe_requires_what_the_package_requires() -> None:
    """`make dist` renders it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    lowest = recipe["context"]["python_min"]
    run = [each.replace("${{ python_min }}", lowest) for each in recipe["requirements"]["run"]]
    assert specifiers(run) == specifiers([*project["dependencies"], f"python{project['requires-python']}"])
    optional = [each.replace("pytorch", "torch") for each in recipe["requirements"]["run_constraints"]]
    assert specifiers(optional) == specifiers(project["optional-dependencies"]["torch"])
    assert "setuptools >=77" in recipe["requirements"]["host"]
    assert recipe["build"]["python"]["entry_points"] == ["giaann-dask = giaann_dask.__main__:run"]
    assert (ROOT / "conda" / recipe["source"]["path"]).resolve() == ROOT


def test_the_newest_versions_are_allowed_and_are_those_of_everything_that_is_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    newest = pins("constraints-newest.txt")
    for name, allowed in specifiers([*project["dependencies"], *extras["torch"], *extras["dev"]]).items():
        assert name == "giaann-dask" or newest[name] in allowed, name


def test_workflows_run_what_is_there_on_every_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    checks, release = (yaml.safe_load(text)["jobs"] for text in texts)
    versions = [checks["all"]["steps"][1]["with"]["python-version"], *checks["tests"]["strategy"]["matrix"]["python"]]
    assert versions == [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"make ([\w-]+)", "".join(texts))
    assert {"dist", "test"} == set(targets)
    assert all(f"\n{each}:" in makefile for each in targets)
    files = re.findall(r"constraints[\w-]*\.txt|\.ci/\w+|conda/\w+\.yaml", "".join(texts))
    assert len(files) >= 4
    assert all((ROOT / each).exists() for each in files)
    named = [job["needs"] for job in release.values() if "needs" in job]
    assert {name for each in named for name in ([each] if isinstance(each, str) else each)} <= set(release)


def test_the_check_of_a_gpu_imports_the_packages_that_it_names_and_no_others_of_ours() -> None:
    named = re.search(r"^GPU_CHECK := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert named
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in project["dependencies"]}
    # What Dask and PyTorch import for themselves, and install.
    others = ours - {*named[1].split(), "click", "fsspec", "networkx"}
    assert {"distributed", "spacy"} <= others
    program = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); import test_gpu, benchmarks.device"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    done = subprocess.run(
        [sys.executable, "-c", program, *others], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_only_tensors_need_pytorch(tmp_path: Path) -> None:
    program = """if True:
    import sys
    from importlib.machinery import PathFinder

    class WithoutTorch(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name == "torch" else super().find_spec(name, path, target)

    sys.meta_path[:] = [WithoutTorch if each is PathFinder else each for each in sys.meta_path]
    import giaann_dask as gd
    text, folder = sys.argv[1:]
    with gd.connect(workers=0) as client:
        for profile in ("v1", "v2"):
            specification = gd.Specification(profile=profile, regions=2)
            network = gd.train(text, f"{folder}/{profile}", client=client, specification=specification)
            found = network.generate("The old miller carried the flour", client=client, reasons=3)
            assert found.tokens[0].reasons
            assert network.evaluate(text, client=client).top1 > 0
        try:
            gd.train(text, f"{folder}/published", client=client, mode="published")
        except gd.errors.MissingDependencyError as error:
            print(error)
    """
    text = write_village(tmp_path / "village.txt", 20)
    done = subprocess.run(
        [sys.executable, "-c", program, str(text), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("the package 'torch' cannot be imported"), done.stderr
    assert done.stdout.strip().endswith("install it with: pip install 'giaann-dask[torch]'")


@pytest.mark.cluster
def test_workers_that_exchange_data_by_ucx_train_the_same_network(tmp_path: Path) -> None:
    pytest.importorskip("distributed_ucxx", reason="needs distributed-ucxx (extra cuda)")
    text, digests = write_village(tmp_path / "village.txt", 40), set()
    for protocol in PROTOCOLS:
        with gd.connect(options=gd.ClusterOptions(workers=2, protocol=protocol)) as client:
            addresses = client.scheduler_info(n_workers=-1)["workers"]
            assert [address.partition("://")[0] for address in addresses] == [protocol] * 2
            options = gd.TrainingOptions(batch_sequences=10)
            digests.add(gd.train(text, tmp_path / protocol, client=client, options=options).digest())
    assert len(digests) == 1
