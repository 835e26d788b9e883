"""How a command ends that cannot do what it was asked to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hs_capture.errors import HsCaptureError

FAILED = 1
"""Exit code of a command that could not do a part of what was asked."""

REFUSED = 2
"""Exit code of a command that says why it cannot go on."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


@contextmanager
def told(command: str) -> Iterator[None]:
    """Turn errors that a user can do something about, and Ctrl-C, into a line and an exit code."""
    try:
        yield
    except (HsCaptureError, OSError) as error:
        print(f"hs-capture {command}: {explain(error)}", file=sys.stderr)
        raise SystemExit(REFUSED) from None
    except KeyboardInterrupt:
        print(f"\nhs-capture {command}: interrupted; run it again to go on", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def explain(error: Exception) -> str:
    """`error` in words: what the system says begins with a number and ends with its subject."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
