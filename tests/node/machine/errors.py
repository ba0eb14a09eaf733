"""What can go wrong with the test's own machine, as opposed to the roles it tests."""


class MachineError(RuntimeError):
    """The machine, its image or its mirror could not be made; the message says which step and what to look at."""


class DependencyError(MachineError):
    """This host cannot run the machine at all (not root, no Debian mirror, a program that cannot be installed)."""
