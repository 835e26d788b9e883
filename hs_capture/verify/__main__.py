"""`python -m hs_capture.verify`: the same as `hs-capture verify`."""

from __future__ import annotations

import sys

from hs_capture.cli import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]], program="python -m hs_capture.verify"))
