"""`python -m bench.ten_minutes VERB`."""

import sys

from bench.ten_minutes.command_line import main

sys.exit(main())
