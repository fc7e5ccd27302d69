"""How many cases a parser of foreign bytes is tried with: FREEZEFRAME_FUZZ, a few hundred otherwise; `make fuzz`."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

CASES = int(os.environ.get("FREEZEFRAME_FUZZ", "300"))
FUZZ = settings(
    max_examples=CASES, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# For one test: a fifth of a second for each case, on a machine that has much else to do.
PATIENCE = pytest.mark.timeout(300 + CASES // 5)
