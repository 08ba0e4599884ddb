"""What the round logs say: the entropy law (§6), its tail, the width replay and the tests around them.

Arrays in, frozen dataclasses out, scipy underneath, no torch. Rounds of one prompt are not independent, so every
interval here resamples or sums over prompts.
"""
