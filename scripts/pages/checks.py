"""``docs/checks.md``, from the checks of a node."""

from __future__ import annotations

from harness.node.checks import registered
from harness.node.checks.registry import CONTROL_PLANE, WORKER, NodeCheck
from harness.node.verify import ROLES_AREA

_HEAD = """# The verdict on a node

<!-- Written by `python -m scripts.pages` from the checks; edit `harness/node/checks/` instead. -->

`harness node verify` judges a whole node, independently of the roles that made it: {count} checks and, as `{roles}/verify`,
every role's own verification. It changes nothing. Exit code 0: all is well; 10: something failed, with what was expected and
found, what to do, and the end of the unit's journal.

```sh
harness node verify                          # the inventory's nodes, in words
harness node verify --json                   # one document, for scripts
harness node verify --only swap --only crio  # some areas
harness node verify --wait 600               # after a reboot: judge again until nothing fails, for up to ten minutes
harness node reboot-test --inventory INVENTORY    # judge, reboot, judge, converge again with nothing changed
pytest tests/testinfra --hosts=ansible://HOST --ansible-inventory=INVENTORY   # the same checks, one test each
```

For the local machine: `harness node reboot-test --before state.json`, reboot, then `harness node reboot-test --after state.json`.

## The document

```
{{ok, host, boot_id, checked_at,
 checks: [{{name, ok, expected, found, advice, journal}}],
 not_applicable: [{{name, reason}}],
 others: [the verdicts on further nodes]}}
```

`not_applicable` names what cannot be judged on a node (GPU checks without a GPU, the cluster's parts on a worker), with the reason.
What should be readable and is not has failed. Versions, names and networks come from the inventory and the roles' defaults; modules,
kernel parameters and file modes are written into the checks, so that they do not share a role's mistake.

## The checks

| check | what must hold | only on |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    checks = registered()
    rows = "".join(_row(check) for check in checks)
    return _HEAD.format(count=len(checks), roles=ROLES_AREA) + rows


def _row(check: NodeCheck) -> str:
    holds = (check.function.__doc__ or "").splitlines()[0]
    where = "" if check.kinds >= {CONTROL_PLANE, WORKER} else next(iter(check.kinds)).replace("_", " ")
    return f"| `{check.name}` | {holds} | {where} |\n".replace("|  |", "| |")
