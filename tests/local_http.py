"""HTTP to servers on this machine: a proxy of the environment could not reach them."""

from __future__ import annotations

import urllib.request
from typing import Final

_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: as `urllib.request.urlopen`, without a proxy
open_local: Final = _OPENER.open
