"""`lookout sign-in`: a link to the HTTP API of the fleet that runs here."""

from __future__ import annotations

from lookout.cli.options import BootstrapOption, CliError
from lookout.cli.output import echo


def sign_in(bootstrap: BootstrapOption = None) -> None:
    """Print a one-time link that signs in to the HTTP API of the fleet that runs here."""
    from lookout.local.addresses import running_fleets

    fleets = [fleet for fleet in running_fleets() if bootstrap in (None, fleet.bootstrap)]
    if len(fleets) > 1:
        addresses = ", ".join(fleet.bootstrap for fleet in fleets)
        raise CliError(f"several fleets run on this machine: choose one with --bootstrap ({addresses})")
    link = fleets[0].sign_in_link() if fleets else None
    if link is None:
        raise CliError(
            "no fleet with an HTTP API runs here: start one with `lookout up`; at a fleet elsewhere, sign "
            "in with a token or through its provider"
        )
    echo(link)
