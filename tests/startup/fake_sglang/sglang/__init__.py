"""A stand-in for SGLang: just enough of it to watch what happens when it is imported."""
