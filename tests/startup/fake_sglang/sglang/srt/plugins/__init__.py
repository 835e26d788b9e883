"""Loads plugins as SGLang does: every entry point of its group, from inside this module."""

from importlib.metadata import entry_points


def load_plugins() -> None:
    for entry_point in entry_points(group="sglang.srt.plugins"):
        entry_point.load()()
