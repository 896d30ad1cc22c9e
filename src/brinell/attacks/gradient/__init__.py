"""Attacks that follow a loss's gradient inside the ball: FGSM, PGD, APGD and L1-APGD."""
