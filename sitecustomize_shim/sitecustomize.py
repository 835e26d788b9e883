"""The door for those who can only set PYTHONPATH: put this directory first on it.

An interpreter runs one `sitecustomize` only. This one runs the next on the path first, as if it
were not there itself, and then calls `init`. The package itself must be importable too, so the
directory above this one belongs on PYTHONPATH as well.
"""

import os
import sys

_NAME = "sitecustomize"


def _run_next() -> None:
    """Import the next module of this name and leave it in our place in `sys.modules`.

    What it raises passes through: the interpreter reports that as it would without us.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    taken = [(i, entry) for i, entry in enumerate(sys.path) if os.path.abspath(entry) == here]
    for index, _ in reversed(taken):
        del sys.path[index]
    ours = sys.modules.pop(_NAME, None)
    try:
        __import__(_NAME)
    except ImportError as error:
        if error.name != _NAME:
            raise
    finally:
        # Entries go back one by one: what the next one did to the path must stay.
        for index, entry in taken:
            sys.path.insert(index, entry)
        if ours is not None:
            sys.modules.setdefault(_NAME, ours)


try:
    _run_next()
finally:
    from sitecustomize_shim import init

    init()
