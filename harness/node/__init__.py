"""Everything that drives a node: playbooks through ansible-runner, the verdict, the reboot test, offline lists."""
