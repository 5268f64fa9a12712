"""``make fuzz``: each target under libFuzzer, with inputs of the goldens. A seed is libFuzzer's.

The growing corpus and findings are in build/fuzz. ``--seconds`` is the time of each target.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.build import BUILD, ENVIRONMENT, TARGETS, build, libfuzzer
from tests.support.seeds import Kit, Problem, Result

MAX_INPUT_SIZES = {"fuzz_scan": 16384, "fuzz_walk": 16384, "fuzz_codec": 2048, "fuzz_append": 8192, "fuzz_puts": 8192}
# Seconds for one input, and megabytes for the process. ASan limits each allocation.
LIMITS = ("-timeout=60", "-rss_limit_mb=2048")


def check(seed: int, _folder: Path, options: argparse.Namespace) -> Result:
    """Run the targets in order."""
    print("Building the fuzz targets into build/fuzz", flush=True)
    executables = build(libfuzzer(), tuple(options.target or TARGETS))
    inputs = BUILD / "seeds"
    corpus.write(inputs)
    found = Result()
    for target, executable in executables.items():
        print(f"{target}: {options.seconds or 60:.0f} s", flush=True)
        found.problems += run_target(target, executable, inputs / target, int(options.seconds or 60), seed)
    return found


def run_target(target: str, executable: Path, inputs: Path, seconds: int, seed: int) -> list[Problem]:
    grown, findings = BUILD / "corpus" / target, BUILD / "findings"
    grown.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    log = BUILD / f"{target}.log"
    command = [
        str(executable),
        str(grown),
        str(inputs),
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_SIZES[target]}",
    ]
    command += [f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1", f"-seed={seed}", *LIMITS]
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=os.environ | ENVIRONMENT, check=False)
    text = log.read_text(errors="replace")
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", text)
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\S+)", text)
    edges, features, inputs = coverage[-1] if coverage else ("?", "?", "?")
    counts = f"{edges} edges, {features} features, corpus {inputs}"
    print(f"{target}: {executions[-1] if executions else 'no'} executions, {counts}", flush=True)
    if not done.returncode:
        return []
    what = re.findall(r"(?:IS FALSE:|runtime error:|ERROR: (?:Address|Leak|lib)\w+:).*", text)
    unit = re.findall(r"Test unit written to (\S+)", text)
    reproducer = unit[-1] if unit else "none was written"
    detail = f"reproducer {reproducer}, log {log}, again: {executable} {reproducer}"
    return [Problem(what[0] if what else f"{target} failed", detail)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this target")


KIT = Kit("tests.fuzz", check, __doc__, 1, add_options, processes=1, seed=1)

if __name__ == "__main__":
    sys.exit(KIT.main())
