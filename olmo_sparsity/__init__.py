"""olmo-sparsity: how few of the earlier tokens does a language model need?

Trains short-context OLMo models with PoSE position IDs, unmasks the k most influential long-range
tokens of a window, and measures how much of the loss comes back (Golowich et al., ICML 2025).

Importing the package imports neither torch nor olmo; the modules that need them import them.
"""

__version__ = "0.1.0"
