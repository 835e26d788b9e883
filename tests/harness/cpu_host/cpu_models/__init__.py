"""The models SGLang offers in these tests: named by ``SGLANG_EXTERNAL_MODEL_PACKAGE``.

With that variable set SGLang does not import its two hundred other model files.
"""
