"""The exhibits of the papers: `autoattack`, `robustbench`, `minimum_margin`, `binarization` and `curves`.

Every file has EXHIBITS, in the order of the paper. An exhibit only calls public functions of other packages of Brinell
and puts their results into the paper's layout.
"""
