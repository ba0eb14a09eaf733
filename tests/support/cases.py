"""One test for many cases: it looks at all of them and names each that does not hold."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def every(cases: Iterable[Any], name: Callable[..., str] = str) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make of a check one test over all ``cases``, where a test of its own for each would cost more than the check.

    A case that is a tuple is the check's arguments. ``name`` says which one it is, from the same arguments.
    """
    listed = [case if isinstance(case, tuple) else (case,) for case in cases]
    assert listed, "no case: such a test cannot fail"

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        @functools.wraps(check)
        def test() -> None:
            offenders = []
            for case in listed:
                try:
                    check(*case)
                except Exception as error:  # noqa: BLE001 - whatever a case raises, the others are looked at too
                    named = name(*case) if name is not str else " ".join(map(str, case))
                    offenders.append(f"{named}: {type(error).__name__}: {error}")
            assert not offenders, f"{len(offenders)} of {len(listed)} do not hold:\n" + "\n".join(offenders)

        # Its own arguments are no fixtures.
        test.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        return test

    return decorate
