"""From a store of captures to the files that a trainer reads.

One module a format says what the trainer wants; `plan` decides what is exported and refuses what
the format cannot express; `run` does it. Nothing here needs a trainer to be installed.
"""
