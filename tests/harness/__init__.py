"""Real SGLang servers on a plain CPU, and transformers as the reference for what they compute."""
