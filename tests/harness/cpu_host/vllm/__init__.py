"""Stands where SGLang looks for the one vLLM operator that it needs on a plain CPU."""
