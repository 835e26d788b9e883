"""What runs at the start of every interpreter: one look at a variable, and at most a trip-wire.

Standard library only, and only modules that every interpreter has loaded already. Nothing here
raises or exits. The function `init` stays for ever: a start-up file that an older version left
must still find it.
"""

import os
import sys

# The door through which `init` became active: "pth", "start", "sitecustomize", "plugin" or
# "call" (somebody called it by hand). None while it is not active.
door: str | None = None


class _TripWire:
    """Waits on `sys.meta_path` for the import of SGLang, sets up the hooks once, and is gone."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "sglang":
            # A new list: removing from the one being walked would make the walk skip a finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            _install()


def init() -> None:
    """Get ready to hook SGLang if `SGLANG_HS_DUMP_DIR` is set. A second call does nothing."""
    global door
    if door is not None or not os.environ.get("SGLANG_HS_DUMP_DIR", "").strip():
        return
    caller = sys._getframe(1)
    door = _door(str(caller.f_globals.get("__name__")), caller.f_code.co_filename)
    if "sglang" in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, _TripWire())


def _door(module: str, file: str) -> str:
    """Tell the door from the code that called `init`."""
    if module == "site":  # it runs the lines of .pth files through exec, and .start entries itself
        return "pth" if file == "<string>" else "start"
    names = {"sitecustomize": "sitecustomize", "sglang": "plugin"}
    return names.get(module.partition(".")[0], "call")


def _install() -> None:
    try:
        from hs_capture.hooks import install

        install()
    except (Exception, SystemExit) as error:  # a broken plugin must not break its host
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        try:
            sys.stderr.write(f"hs-capture: not active: {reason}\n")
        except Exception:  # a closed stderr is no reason to fail either
            return
