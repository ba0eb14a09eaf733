"""``docs/checks.md``, from the checks of a node."""

from __future__ import annotations

from harness.node.checks import registered
from harness.node.checks.registry import CONTROL_PLANE, WORKER, NodeCheck
from harness.node.verify import ROLES_AREA

_HEAD = """# The verdict on a node

<!-- Written by `python -m scripts.pages` from the checks; edit `harness/node/checks/` instead. -->

`harness node verify` judges a whole node, independently of the roles that made it: {count} checks and, as `{roles}/verify`,
every role's own verification. Exit code 0: all is well; 10: something failed, with what was expected, what was found, what
to do, and the last lines of the unit's journal. It changes nothing and gives the same checks before and after a reboot.

```sh
harness node verify                          # the inventory's nodes, in words
harness node verify --json                   # one document, for scripts
harness node verify --only swap --only crio  # some areas
harness node verify --wait 600               # after a reboot: judge again until nothing fails, for up to ten minutes
harness node reboot-test --inventory INVENTORY    # judge, reboot, judge, converge again with nothing changed
pytest tests/testinfra --hosts=ansible://HOST --ansible-inventory=INVENTORY   # the same checks, one test each
```

The machine we are on cannot watch its own reboot: `harness node reboot-test --before state.json`, reboot, then
`harness node reboot-test --after state.json`.

## The document

```
{{ok, host, boot_id, checked_at,
 checks: [{{name, ok, expected, found, advice, journal}}],
 not_applicable: [{{name, reason}}],
 others: [the verdicts on further nodes]}}
```

What cannot be judged on a node (GPU checks without a GPU, pressure where the inventory says there is none, the cluster's
parts on a worker) is named in `not_applicable` with its reason and counts neither way. What should be readable and is not has failed.
Versions, names and networks come from the inventory and the roles' defaults, resolved by Ansible; what the project fixes
(modules, kernel parameters, file modes) is written into the checks, so that a mistake in a role is not shared by its judge.

## The checks

| check | what holds | on |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    checks = registered()
    rows = "".join(_row(check) for check in checks)
    return _HEAD.format(count=len(checks), roles=ROLES_AREA) + rows


def _row(check: NodeCheck) -> str:
    holds = (check.function.__doc__ or "").splitlines()[0]
    where = "every node" if check.kinds >= {CONTROL_PLANE, WORKER} else next(iter(check.kinds)).replace("_", " ")
    return f"| `{check.name}` | {holds} | {where} |\n"
