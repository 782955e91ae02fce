"""The reference program's calculators against ours, on the same judgments; and what `evaluate` costs.

Both sides start from their loaded form (the reference: dictionaries of token probabilities; ours: arrays), each
judgment at hand in both orders, and end at the ratio with its counts. The reference runs its own code, without its
log files and progress bars, which cost it more. `--reference` names a checkout of it; nothing of it lies here.
"""

import importlib.util
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from trustjudge_ray.analysis import scoring, verdicts
from trustjudge_ray.analysis.consistency import score_signs
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.transitivity import UNKNOWN, count_subsets
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imports.base import Asked, compare_protocol, read_row, score_protocol
from trustjudge_ray.schema import JUDGMENTS, from_rows

from . import Options, alternating

RESPONSES = 20
SCALE = 100
SIZES = (3, 4, 5)
PAIRS_OF_RUNS = 5
