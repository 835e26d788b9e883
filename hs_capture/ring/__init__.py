"""The shared-memory ring between the server's scheduler and the writer process.

``layout`` says what the bytes mean, ``producer`` fills them, ``consumer`` empties them.
"""
