"""The writer: a process of its own that turns ring entries into published capture files.

It knows neither torch nor SGLang. ``__main__`` is the process, ``config`` what it is told at its
start, ``assembler`` joins chunks to requests, ``record`` is one request on its way to a file,
``publisher`` makes a finished record visible, ``leftovers`` cleans up after writers that were
killed.
"""
