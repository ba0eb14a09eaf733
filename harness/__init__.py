"""From a bare GPU machine to a measured answer: replica-scaling inference experiments."""

__version__ = "0.1.0"
