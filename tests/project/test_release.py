"""What a release consists of is declared once, and the workflows run what they name."""

from __future__ import annotations

import configparser
import hashlib
import re
import sys
from pathlib import Path

import pytest

from pyspark_dledger import __version__
from tools.release import PLATFORMS, main, missing_wheels, notes, recipe

ROOT = Path(__file__).resolve().parent.parent.parent
CHANGELOG = (
    "# Changelog\n\n## 1.1.0 (unreleased)\n\nmore\n\n## 1.0.0\n\n### New\n\n[a](docs/a.md), [b](https://b)\n\n## 0.9\n"
)
PYPROJECT = (ROOT / "pyproject.toml").read_text()
SETUP = configparser.ConfigParser(interpolation=None)
SETUP.read(ROOT / "setup.cfg")


def test_the_version_stands_in_one_place() -> None:
    assert SETUP["metadata"]["version"] == "attr: pyspark_dledger.__version__"
    found = [path.name for path in (ROOT / "pyspark_dledger").rglob("*.py") if f'"{__version__}"' in path.read_text()]
    assert found == ["__init__.py"]


def test_the_changelog_begins_with_the_version() -> None:
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == __version__


def test_notes_are_the_section_of_a_version() -> None:
    assert notes(CHANGELOG, "1.0.0", "https://x/") == "### New\n\n[a](https://x/docs/a.md), [b](https://b)\n"
    assert notes(CHANGELOG, "1.1.0") == "more\n"
    with pytest.raises(SystemExit, match=r"expected a section '## 1.2.0'"):
        notes(CHANGELOG, "1.2.0")


def test_a_release_needs_a_wheel_for_each_python_and_platform(tmp_path: Path) -> None:
    """cibuildwheel builds them, and the classifiers name these Pythons."""
    builds = re.findall(r'"cp3(\d+)-\*"', PYPROJECT)
    assert builds == re.findall(r"Python :: 3\.(\d+)", SETUP["metadata"]["classifiers"])
    for python in builds:
        for platform in PLATFORMS:
            tag = f"cp3{python}-cp3{python}-{platform.replace('*', '2')}"
            (tmp_path / f"pyspark_dledger-{__version__}-{tag}.whl").touch()
    assert list(missing_wheels(tmp_path)) == []
    next(tmp_path.glob("*musllinux*aarch64*")).unlink()
    assert len(list(missing_wheels(tmp_path))) == 1


def test_the_recipe_names_the_requirements_and_the_sdist_of_the_release(tmp_path: Path) -> None:
    (tmp_path / f"pyspark_dledger-{__version__}.tar.gz").write_bytes(b"sdist")
    whole = recipe((ROOT / "packaging/recipe.yaml").read_text(), tmp_path, "https://x/")
    assert f"  version: {__version__}\n" in whole
    assert f"  url: https://x/pyspark_dledger-{__version__}.tar.gz\n" in whole
    assert f"  sha256: {hashlib.sha256(b'sdist').hexdigest()}\n" in whole
    build = re.findall(r'"(.*?)"', re.findall("^requires = (.*)", PYPROJECT, re.MULTILINE)[0])
    for requirement in (*SETUP["options"]["install_requires"].split(), *build):
        name, limits = re.fullmatch(r"(\w+)(.*)", requirement).groups()  # type: ignore[union-attr]
        assert f"    - {name} {limits}\n" in whole


def test_a_tag_of_another_version_is_no_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["release", "check", "--dist", str(tmp_path), "--tag", "v9.9"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert f"expected tag v{__version__}, found v9.9\n" in capsys.readouterr().out


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    used = re.findall(r"uses: *(.*)", workflow.read_text())
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


def test_workflows_run_targets_and_modules_that_exist() -> None:
    text = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"run: make ([a-z-]+)$", text, re.MULTILINE):
        assert f"\n{target}:" in makefile
    for module in re.findall(r"-m (tools\.\w+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()
