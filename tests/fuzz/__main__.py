"""``make fuzz``: runs each target under libFuzzer with seeds of the goldens, then the comparisons of engines and wire.

``--seconds`` is the time of each; ``--target`` runs only one. Findings and the growing corpus are in build/fuzz. The
first finding ends it with status 1 and the name of its reproducer.
"""

# ruff: noqa: T201 - printing is what a command line does

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.build import BUILD, ENVIRONMENT, TARGETS, BuildError, build, libfuzzer

MAX_INPUT_SIZES = {"fuzz_scan": 16384, "fuzz_walk": 16384, "fuzz_codec": 2048, "fuzz_append": 8192, "fuzz_puts": 8192}
SCRIPTS = ("differential", "wire")
# Seconds for one input, and megabytes for the process. ASan limits each allocation.
LIMITS = ("-timeout=60", "-rss_limit_mb=2048")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--target", choices=(*TARGETS, *SCRIPTS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wanted = given.target or [*TARGETS, *SCRIPTS]
    try:
        targets = tuple(target for target in TARGETS if target in wanted)
        if targets:
            fuzz(targets, given.seconds, given.seed)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    for script in SCRIPTS:
        command = [sys.executable, "-m", f"tests.fuzz.{script}"]
        command += ["--seconds", str(given.seconds), "--seed", str(given.seed)]
        if script in wanted and (failed := subprocess.run(command, check=False).returncode):
            return failed
    return 0


def fuzz(targets: tuple[str, ...], seconds: int, seed: int) -> None:
    """Run the targets in order. Prints the first finding and raises CalledProcessError."""
    print("Building the fuzz targets into build/fuzz", flush=True)
    executables = build(libfuzzer(), targets)
    seeds = BUILD / "seeds"
    corpus.write(seeds)
    for target, executable in executables.items():
        print(f"{target}: {seconds} s", flush=True)
        run_target(target, executable, seeds / target, seconds, seed)


def run_target(target: str, executable: Path, seeds: Path, seconds: int, seed: int) -> None:
    grown, findings = BUILD / "corpus" / target, BUILD / "findings"
    grown.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    log = BUILD / f"{target}.log"
    command = [
        str(executable),
        str(grown),
        str(seeds),
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
    if done.returncode:
        what = re.findall(r"(?:IS FALSE:|runtime error:|ERROR: (?:Address|Leak|lib)\w+:).*", text)
        unit = re.findall(r"Test unit written to (\S+)", text)
        reproducer = unit[-1] if unit else "none was written"
        print(f"{what[0] if what else 'The target failed'}\n  reproducer: {reproducer}", file=sys.stderr)
        print(f"  again:      {executable} {reproducer}\n  log:        {log}", file=sys.stderr)
        raise subprocess.CalledProcessError(1, command)


if __name__ == "__main__":
    sys.exit(main())
