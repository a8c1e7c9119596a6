"""All benchmarks in one table: what `make bench` prints.

Ends with an error where a requirement is missed.
"""

from __future__ import annotations

import sys
from itertools import chain

import bench_archive
import bench_ntk
import bench_plan
from pairs import print_table

if __name__ == "__main__":
    sys.exit(
        0 if print_table(chain(bench_ntk.rows(), bench_plan.rows(), bench_archive.rows())) else 1
    )
