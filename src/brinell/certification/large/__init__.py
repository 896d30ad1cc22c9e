"""Ranges of networks that have too many neurons for a pass of CROWN from each of them to the input.

`deviations` bounds how far every value can be from that of the sample, by passes that stop early. `patches` holds the
coefficients of a pass, on the part of an image that its neurons read.
"""
