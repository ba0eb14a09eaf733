"""A workload's module that cannot be imported."""

raise RuntimeError("no weights on this machine")
