"""The only file that the WebUI executes: joins ti_fix to the host that started it.

The host puts this folder's parent on `sys.path` only while this file runs, so the package is imported here, at the
top; what is imported from it later is then found through the package.
"""

from __future__ import annotations

import logging

from ti_fix import __version__

logging.getLogger("ti_fix").info("ti_fix %s", __version__)
