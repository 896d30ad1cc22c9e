"""Add certificates to a finished Run: `brinell.certify` and `brinell.evaluate(..., certify=True)`.

`certify` reads the survivors of a Run, has them certified and stores the certificates. `certifiers` makes the method
that certifies from its name and settings. `radii` bisects the largest
radius of each sample. `rows` turns certificates into rows and verifies counterexamples.
"""
