"""Benchmarks: systems that decode the same prompts in one process, interleaved, with intervals and a manifest."""
