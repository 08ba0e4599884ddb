"""Training: the target's own answers as traces, then a head that predicts them."""
