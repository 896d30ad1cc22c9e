"""Attacks around other attacks: searches over the radius, and back towards the clean point."""
