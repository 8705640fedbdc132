"""The services: each wires a library to the runtime."""

import gc
import sys

# `python -m lookout.services.NAME` imports this package before the service. While a service is imported, the
# garbage collector finds nothing and takes a fifth of the time; `load_settings` turns it on again.
if sys.argv[:1] == ["-m"] and any(
    word.startswith("lookout.services.") and word.count(".") == 2 for word in sys.orig_argv
):
    gc.disable()
