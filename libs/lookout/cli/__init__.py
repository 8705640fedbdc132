"""The `lookout` command line."""


def main() -> None:
    """Entry point; the commands are imported when it runs."""
    from lookout.cli.app import main as run

    run()


__all__ = ["main"]
