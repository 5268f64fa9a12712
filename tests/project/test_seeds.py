"""The runner of everything that takes seeds."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.seeds import Kit, Problem, Result
from tools.words import ROOT, problems


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    """Every third seed has a problem, every fifth raises."""
    (folder / "file").write_text(options.word)
    if seed % 5 == 4:
        raise ValueError("five")
    problems = [Problem("third", f"{seed} is one")] if seed % 3 == 2 else []
    return Result(problems, Counter({"letters": len(options.word)}), ["all about it"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--word", default="seed")
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("--each", action="append")


def absent(counts: Counter[str], seeds: int, _options: argparse.Namespace) -> list[str]:
    return ["letters"] if seeds and not counts["letters"] else []


A_KIT = Kit("tests.kit", check, "A kit.", 6, add_options, absent)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_report_has_the_problems_by_kind_and_the_commands_that_repeat_them(
    processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--processes", processes, "--flag", "--each", "a b", "--each", "c", "--shown", "1"]
    assert A_KIT.main(given) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:2]) == ["ValueError: seed 4: five", "third: seed 2: 2 is one"]
    assert [line.strip() for line in lines[2:5]] == [
        "20  letters",
        "2 third: seed 2: 2 is one",
        "1 ValueError: seed 4: five",
    ]
    assert lines[5].startswith("3 of 6 seeds failed, ")
    options = "--flag --each 'a b' --each c"
    assert lines[6:] == [f"again: python -m tests.kit --only {seed} {options}" for seed in (2, 4, 5)]


def test_seeds_without_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert A_KIT.main(["--seed", "30", "--count", "2", "--word", "other"]) == 0
    assert capsys.readouterr().out.splitlines()[0].strip() == "10  letters"


def test_an_event_that_never_happens_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert A_KIT.main(["--count", "1", "--word", ""]) == 1
    assert capsys.readouterr().out.endswith("expected events never happened: letters\n")


def test_one_seed_is_told_in_full_and_its_files_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert A_KIT.main(["--only", "2", "--keep", str(tmp_path / "kept")]) == 1
    told = ["all about it", "           4  letters", "third: 2 is one", "seed 2: 1 problems"]
    assert capsys.readouterr().out.splitlines() == told
    assert (tmp_path / "kept/file").read_text() == "seed"


def test_of_many_seeds_only_the_files_of_failed_ones_are_kept(tmp_path: Path) -> None:
    assert A_KIT.main(["--keep", str(tmp_path), "--processes", "1"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4", "5"]


README = (ROOT / "tests/README.md").read_text()


def test_the_page_lists_every_kit_under_its_name() -> None:
    files = [file for file in (ROOT / "tests").rglob("*.py") if re.search("^KIT = Kit", file.read_text(), re.MULTILINE)]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__"): file for file in files}
    assert len(modules) > 10
    assert set(re.findall(r"`(?:python -m )?(tests\.[a-z_.]*[a-z])`", README)) == set(modules)
    for module, file in modules.items():
        assert f'KIT = Kit("{module}", ' in file.read_text()


def test_the_page_names_files_that_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:\.py)?)`", README)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_the_page_is_as_short_as_the_docs() -> None:
    assert list(problems("tests/README.md", README)) == []
