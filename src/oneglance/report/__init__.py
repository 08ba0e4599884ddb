"""What a reader sees of the numbers: figures from the dataclasses of ``stats/``."""
