"""`python -m lookout.cli`, the same as `lookout`."""

from lookout.cli import main

main()
