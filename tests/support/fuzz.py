"""How many cases a parser of foreign bytes is tried with: FREEZEFRAME_FUZZ, a few hundred otherwise; `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

CASES = int(os.environ.get("FREEZEFRAME_FUZZ", "300"))
FUZZ = settings(
    max_examples=CASES, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
