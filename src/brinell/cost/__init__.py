"""What an evaluation costs: an estimate from a pilot run, and the choice of precision. Not on the main path."""
