"""Measure what GPU sharing costs: replica-scaling inference experiments.

``harness.load``, ``harness.compare`` and ``harness.run`` are the Python API; see ``harness.api``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api import Campaign, Experiment, compare, load, run

__all__ = ["Campaign", "Experiment", "__version__", "compare", "load", "run"]
__version__ = "1.0.0"


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """The API, imported when it is first asked for: ``import harness`` is instant."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness import api

    return getattr(api, name)
