"""Prints PyTorch's perplexities beside the program's as Markdown.

usage: python3 bench/peer_table.py RUNS FILE.json ...

RUNS is a folder of carope reproduce, whose perplexities stand as mean and deviation over its seeds; each file is
bench/peer_experiment.py's.
"""

import argparse
import json
import statistics
from pathlib import Path


def perplexities(runs: Path, encoding: str, length: str) -> list[float]:
    """Of the program, one a seed."""
    found: list[float] = []
    for path in sorted(runs.glob(f"{encoding}-seed*/evaluation.json")):
        lengths = json.loads(path.read_text())["lengths"]
        found += [each["perplexity"] for each in lengths if str(each["length"]) == length and each["perplexity"]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the program's runs")
    parser.add_argument("results", type=Path, nargs="+", help="files of peer_experiment.py")
    options = parser.parse_args()
    results = [json.loads(path.read_text()) for path in options.results]
    print("| encoding | length | this program, its seeds | PyTorch, seed | PyTorch | distance, in deviations |")
    print("|---|---:|---:|---:|---:|---:|")
    for result in sorted(results, key=lambda each: (each["encoding"], each["seed"])):
        for length, theirs in result["perplexity"].items():
            ours = perplexities(options.runs, result["encoding"], length)
            if not ours:
                raise SystemExit(f"{options.runs} has no perplexity of {result['encoding']} at {length}; score it first")
            mean = statistics.mean(ours)
            deviation = statistics.stdev(ours) if len(ours) > 1 else 0.0
            cells = [result["encoding"], length]
            cells.append(f"{mean:.2f} ± {deviation:.2f} ({len(ours)} seeds)" if deviation else f"{mean:.2f} (one seed)")
            cells += [str(result["seed"]), f"{theirs:.2f}", f"{(theirs - mean) / deviation:+.1f}" if deviation else "–"]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
