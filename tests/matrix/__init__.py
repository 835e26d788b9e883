"""Runs hs-capture on every supported release of SGLang, on the CPU, against transformers.

``python -m matrix`` with ``tests`` on PYTHONPATH, or ``make matrix``.
"""
