"""Training of the embedded target ("the reader") on the built-in suite."""
