# SPDX-License-Identifier: GPL-2.0
"""./dev bench NAME [OPTIONS]: run a benchmark; NAME is a file of this folder.

The benchmark in `host_time.py` has the name `time`; as the name of a file, it would hide Python's
own module.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from lab import counting

NO_BENCHMARKS = {
    "__init__",
    "__main__",
    "demo",
    "ending",
    "evidence",
    "fragments",
    "large",
    "recordings",
    "typist",
}


def main(argv: list[str]) -> int:
    """Run the benchmark that the first word names."""
    files = {path.stem for path in Path(__file__).parent.glob("*.py")} - NO_BENCHMARKS
    names = {stem.removeprefix("host_"): stem for stem in sorted(files)}
    if not argv or argv[0] not in names:
        counting.progress(f"usage: ./dev bench NAME [--help]\nNAME is one of: {' '.join(names)}")
        return 2
    bench = importlib.import_module(f"bench.{names[argv[0]]}")
    return counting.main(lambda: bench.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
