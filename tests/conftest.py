from __future__ import annotations

import pytest

from tests.support.needs import enforce_needs


def pytest_runtest_setup(item: pytest.Item) -> None:
    enforce_needs(item)
