"""``python -m ti_fix``: the command line."""

import sys

from ti_fix.cli import main

sys.exit(main())
