"""The files of a capture run: bytes and arrays in, bytes and arrays out.

Nothing here knows torch or SGLang, and nothing here starts a thread.
"""
