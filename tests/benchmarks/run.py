"""All benchmarks in one table: what `make bench` prints.

Ends with an error where a requirement is missed.
"""

from __future__ import annotations

import sys
from itertools import chain

import bench_alignment
import bench_archive
import bench_ensembles
import bench_meanode
import bench_ntk
import bench_plan
from pairs import print_table

if __name__ == "__main__":
    benchmarks = (
        bench_ntk,
        bench_ensembles,
        bench_alignment,
        bench_meanode,
        bench_plan,
        bench_archive,
    )
    rows = chain.from_iterable(benchmark.rows() for benchmark in benchmarks)
    sys.exit(0 if print_table(rows) else 1)
