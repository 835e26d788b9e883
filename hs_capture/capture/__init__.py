"""From the rows of one forward pass to the ring. Knows torch, does not know SGLang.

``batch`` says whose rows they are, ``tap`` puts them into the ring, one ``draft`` after another,
``launcher`` starts and minds the writer.
"""
