"""Check mode on a machine that has nothing yet: it goes through to the end, foresees changes and makes none."""

from tests.node import fingerprint
from tests.node.conftest import Boot
from tests.node.machine.image import Disks
from tests.node.mirror.site import Mirror
from tests.node.story import SITE, playbooks_for, step


def test_check_mode_runs_on_the_virgin_machine_and_touches_nothing(
    boot: Boot, dirty_disks: Disks, mirror: Mirror
) -> None:
    checked = step(playbooks_for(boot(dirty_disks), mirror), SITE, "--check")
    assert checked.run.status == 0, checked.run.explain()
    assert checked.run.changed, "check mode foresees no change on a machine that has nothing yet"
    assert fingerprint.difference(checked.before, checked.after) == ""
