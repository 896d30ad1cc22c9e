"""Adversarial training with methods as data, exact resume, and a model that can be evaluated at once.

`fit` is the entry point: it checks the arguments and starts the `loop` over epochs and steps. A `Method` (`methods`)
says which attack makes the adversarial points and which loss is minimised (`objective`). A `Recipe` (`recipe`,
`schedule`) holds the hyperparameters. `samples` holds the data and draws crops and noise keys, `model` makes the
network and its initial weights, `average` keeps a running average of the weights. `folder` reads and writes the output
folder and loads the trained model; `curve` holds one row per epoch; `progress` prints. The command `brinell train`
calls `fit`.
"""

from brinell.models.networks import Network
from brinell.train.fit import Trained, fit
from brinell.train.folder import load
from brinell.train.methods import METHODS, Method
from brinell.train.recipe import Recipe

__all__ = ["METHODS", "Method", "Network", "Recipe", "Trained", "fit", "load"]
