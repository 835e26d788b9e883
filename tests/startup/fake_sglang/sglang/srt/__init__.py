"""The part of the stand-in that a server would run."""
