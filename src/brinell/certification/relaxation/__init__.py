"""The relaxed network of undecided neurons: bounds on many subproblems at once, and the slopes that raise them.

`bounds` holds linear functions, layers as sparse matrices, the lower bound of every subproblem, and the forward pass
that is its gradient. `slopes` holds the subproblems and optimises their slopes and multipliers.
"""
