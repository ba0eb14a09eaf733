"""Makes the helpers beside the tests importable, and lets Ansible and torch live in one process."""

import sys
from pathlib import Path

# Ansible replaces sys.intern by a class when it is imported, which torch refuses; so torch comes first.
import torch._dynamo  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))
