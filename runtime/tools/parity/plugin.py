"""The fixture `parity` for pytest, in every environment that Headrace is installed in.

@pytest.mark.parametrize("bundle", sorted(Path("bundles").iterdir()), ids=lambda bundle: bundle.name)
def test_parity(bundle, parity):
    parity(bundle)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from headrace.runtime.tools.parity.check.findings import Result


class Parity(Protocol):
    """What the fixture gives."""

    def __call__(
        self,
        bundle: str | Path,
        target: str = "auto",
        precisions: Sequence[str] | None = None,
        model: str | Path | None = None,
    ) -> Result:
        """Check a bundle on a target; the test fails with the report where a node is too far off."""
        ...


@pytest.fixture
def parity() -> Parity:
    """`parity(bundle, target="auto", precisions=None, model=None)` fails the test where the bundle does not pass.

    A target that cannot run here skips the test, and says what is missing.
    """

    def check_one(
        bundle: str | Path,
        target: str = "auto",
        precisions: Sequence[str] | None = None,
        model: str | Path | None = None,
    ) -> Result:
        from headrace.backends import backend
        from headrace.errors import TargetError
        from headrace.runtime.tools.parity.bundle import read_bundle
        from headrace.runtime.tools.parity.check.checking import check_on_backend
        from headrace.runtime.tools.parity.report.text import report_text

        read = read_bundle(Path(bundle))
        try:
            found = backend(target)
        except TargetError as error:
            pytest.skip(str(error))
        result = check_on_backend(read, found, precisions, model)
        if not result.passed:
            pytest.fail(f"{bundle}\n{report_text([result])}", pytrace=False)
        return result

    return check_one
