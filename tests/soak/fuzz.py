#!/usr/bin/env python3
"""Coverage-guided fuzzing of what strangers and engines may send: `make soak` runs it after the agents' soak.

    fuzz.py [--runs 1000000] [--planted-runs 10000] [--target NAME] [--corpus FOLDER]

First each target of tests/e2e/fuzz_targets.py has an error planted, which must be found within 10,000 inputs: a fuzzer
that finds nothing there says nothing. Then all targets together take a million inputs, and nothing may be found. Inputs
that reach new code are kept (with --corpus), and `make test` replays them.
"""

import argparse
import contextlib
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fuzz_targets
from fuzz_seeds import seeds, words

# inputs of each target in a hundred: those that go faster, and that strangers reach, get more
SHARES = {"peer": 40, "asker": 30, "probes": 20, "engine": 10}
MAX_INPUT, MAX_KEPT = 1 << 12, 400
# an input takes a millisecond; these are clocks of the wall, and a busy machine lets a fuzzer stand for a long time
INPUT_SECONDS, CHILD_SECONDS = 300, 6 * 3600
SEED = "20261129"


def child(target: str, planted: bool, folder: Path, runs: int, findings: Path) -> None:
    """Fuzzes in this process until it ends it."""
    import atheris

    with atheris.instrument_imports(include=["kvpool_agent", "kvpool_client", "kvpool_contract"]):
        for name in [n for n in sys.modules if n.startswith(("kvpool_", "fuzz_"))]:
            del sys.modules[name]
        import fuzz_plants
        import fuzz_targets as instrumented
    logging.disable(logging.CRITICAL)
    dictionary = findings / "words"
    dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in words()))
    arguments = [
        sys.argv[0], str(folder), f"-runs={runs}", f"-max_len={MAX_INPUT}", f"-dict={dictionary}", f"-seed={SEED}",
        f"-artifact_prefix={findings}/", f"-timeout={INPUT_SECONDS}", f"-report_slow_units={INPUT_SECONDS}",
        "-rss_limit_mb=1024", "-len_control=0", "-print_final_stats=1",
    ]  # fmt: skip
    with fuzz_plants.PLANTS[target]() if planted else contextlib.nullcontext():
        atheris.Setup(arguments, instrumented.TARGETS[target])
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def fuzz(target: str, runs: int, planted: bool, kept: Path | None) -> tuple[list[Path], int, str]:
    """(what it has found, inputs that it took, its last lines)."""
    with tempfile.TemporaryDirectory(prefix="kvpool-fuzz-") as folder:
        corpus, findings = Path(folder) / "corpus", Path(folder) / "findings"
        corpus.mkdir()
        findings.mkdir()
        for number, data in enumerate(seeds()[target]):
            (corpus / f"seed-{number}").write_bytes(data)
        command = [
            *(sys.executable, __file__, "--child", target, "--runs", str(runs), "--folder", str(corpus)),
            *("--findings", str(findings), *(["--planted"] if planted else [])),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
        found = [path for path in findings.iterdir() if path.name != "words"]
        said = done.stderr.splitlines()
        took = next((int(line.split()[-1]) for line in said if "stat::number_of_executed_units" in line), 0)
        if kept is not None and not found:
            _keep(corpus, kept / f"{target}.json")
        out = Path(tempfile.gettempdir()) / "kvpool-fuzz-findings"
        if found and not planted:
            out.mkdir(exist_ok=True)
            found = [Path(path).rename(out / f"{target}-{path.name}") for path in found]
        if done.returncode and not found:
            raise SystemExit(f"fuzz: {target} ended by itself:\n" + "\n".join(said[-20:]))
        return found, took, "\n".join(said[-25:])


def _keep(corpus: Path, target: Path) -> None:
    """As one file: the small inputs, of which there are many, and beside them the seeds are in the tree already."""
    found = sorted((path.read_bytes() for path in corpus.iterdir() if not path.name.startswith("seed-")), key=len)
    lines = ",\n".join(f'  "{data.hex()}"' for data in found if len(data) <= MAX_KEPT)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"[\n{lines}\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs, of all targets together")
    parser.add_argument("--planted-runs", type=int, default=10_000)
    parser.add_argument("--target", choices=sorted(fuzz_targets.TARGETS))
    parser.add_argument("--corpus", type=Path, help="keep what reached new code in this folder")
    for name in ("--child", "--folder", "--findings"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--planted", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.planted, Path(options.folder), options.runs, Path(options.findings))
        return
    targets, bad = [options.target] if options.target else sorted(fuzz_targets.TARGETS), []
    for target in targets:
        found, took, said = fuzz(target, options.planted_runs, True, None)
        verdict = f"found after {took} inputs" if found else f"NOT FOUND in {options.planted_runs} inputs"
        print(f"{time.strftime('%H:%M:%S')} fuzz {target}, planted error: {verdict}", flush=True)
        bad += [] if found else [said]
    for target in targets:
        share = 100 if options.target else SHARES[target]
        began, runs = time.monotonic(), options.runs * share // 100
        found, took, said = fuzz(target, runs, False, options.corpus)
        verdict = f"FOUND {found[0]}" if found else "nothing found"
        seconds = time.monotonic() - began
        print(
            f"{time.strftime('%H:%M:%S')} fuzz {target}: {verdict}, {took or runs} inputs, {seconds:.0f} s", flush=True
        )
        bad += [said] if found else []
    print("\n\n".join(bad))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
