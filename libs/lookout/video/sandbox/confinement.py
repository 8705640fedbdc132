"""What the parts of the sandbox share."""


class ConfinementError(RuntimeError):
    """This system cannot confine a process."""
