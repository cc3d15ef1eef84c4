"""Hold a program against its specification (`headrace/verify/spec.py`); done after every pass."""

from __future__ import annotations

from headrace.errors import VerifyError
from headrace.ir import Program
from headrace.verify.spec import SPEC
from headrace.verify.view import View


def verify(program: Program, after: str) -> None:
    """Check every rule that holds at the program's stage.

    Raises:
        VerifyError: with every breach, not the first: its rule, its node or fact, and what is wrong there.
    """
    view = View(program)
    rules = [rule for rule in SPEC if program.stage in rule.holds]
    breaches = [f"{rule.name}: {place}: {what}" for rule in rules for place, what in rule.check(view)]
    if breaches:
        raise VerifyError(f"After the pass {after} the program breaks {len(breaches)} rule(s): {'; '.join(breaches)}")
