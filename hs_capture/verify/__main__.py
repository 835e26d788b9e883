"""`python -m hs_capture.verify`: the same as `hs-capture verify`."""

from __future__ import annotations

import sys

PROGRAM = "python -m hs_capture.verify"
USAGE_ERROR = 4
"""That of cli.py, which may be what cannot be imported."""


def run() -> int:
    """Run verify; returns its exit code."""
    try:
        # The command imports this only when it runs.
        import hs_capture.verify.diagnosis  # noqa: F401
        from hs_capture.cli import main
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", "hs_capture"):
            raise
        text = f"run it with the Python that runs the server: {sys.executable} lacks {module}"
        print(f"{PROGRAM}: {text}", file=sys.stderr)
        return USAGE_ERROR
    return main(["verify", *sys.argv[1:]], program=PROGRAM)


if __name__ == "__main__":
    sys.exit(run())
