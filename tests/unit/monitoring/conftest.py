"""Lets Ansible and torch live in one process."""

# Ansible replaces sys.intern by a class when it is imported, which torch refuses; so torch comes first.
import torch._dynamo  # noqa: F401
