"""Print the figures of the SuperNeurons paper, the same by its own rules, and those of our planner; see `figures`.

Run: from the checkout, .venv/bin/python -m benchmarks.superneurons [MODEL ...]
"""

import argparse
import sys

from .figures import BATCHES, list_figures


def main() -> int:
    asked = argparse.ArgumentParser(description="The figures of the SuperNeurons paper, reproduced and ours.")
    asked.add_argument("models", nargs="*", default=list(BATCHES), metavar="MODEL", help=", ".join(BATCHES))
    models = asked.parse_args().models
    if unknown := set(models) - set(BATCHES):
        asked.error(f"no figures for {', '.join(sorted(unknown))}; there are {', '.join(BATCHES)}")
    print(f"{'network':<10}{'batch':>6}  {'stage':<19}{'MiB: paper':>11}{'reproduced':>12}{'ours':>10}", end="")
    print(f"{'runs: paper':>13}{'reproduced':>12}{'ours':>6}")
    for model in models:
        for f in list_figures(model):
            print(
                f"{model:<10}{BATCHES[model]:>6}  {f.stage:<19}{show(f.paper_mib):>11}{show(f.reproduced_mib):>12}"
                f"{show(f.ours_mib):>10}{show(f.paper_runs):>13}{show(f.reproduced_runs):>12}{show(f.ours_runs):>6}"
            )
    return 0


def show(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
