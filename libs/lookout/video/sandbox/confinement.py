"""The error that all parts of the confinement share."""


class ConfinementError(RuntimeError):
    """This system cannot confine a process."""
