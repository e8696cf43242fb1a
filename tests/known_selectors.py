"""Takes back what a test has declared: selectors of one's own are known to a whole process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from olmo_sparsity.records.selectors import SELECTORS


@pytest.fixture
def only_here() -> Iterator[None]:
    """Selectors that the test declares are gone after it."""
    before = dict(SELECTORS)
    yield
    SELECTORS.clear()
    SELECTORS.update(before)
