"""What all tests have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exporters import calibration


@pytest.fixture(scope="session", autouse=True)
def no_calibration() -> Iterator[None]:
    """Exports round to nearest where a test names no effort: calibrating takes seconds even for a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "DEFAULT_EFFORT", "none")
        yield
