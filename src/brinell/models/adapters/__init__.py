"""Classifiers from other frameworks, from functions and from HTTP services.

One file per source: `function` (a numpy function), `http` (a scoring service), `jax`, `onnx` (with gradients by
`onnx_torch`), `sklearn`, `tensorflow`. All use `bridge`: a torch module whose outputs, and gradients where they exist,
another framework computes. A framework is imported only when its adapter is used.
"""

from brinell.models.adapters.function import from_function
from brinell.models.adapters.http import from_http
from brinell.models.adapters.jax import from_jax
from brinell.models.adapters.onnx import from_onnx
from brinell.models.adapters.sklearn import from_sklearn
from brinell.models.adapters.tensorflow import from_tensorflow

__all__ = ["from_function", "from_http", "from_jax", "from_onnx", "from_sklearn", "from_tensorflow"]
