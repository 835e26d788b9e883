"""What `python -m sglang.launch_server` runs: says whether the hooks were there before it."""

import sys

if __name__ == "__main__":
    print("hooked" if "hs_capture.hooks" in sys.modules else "not hooked")
