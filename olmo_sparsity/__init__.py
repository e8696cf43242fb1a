"""olmo-sparsity: how few of the earlier tokens does a language model need?

Trains short-context OLMo models with PoSE position IDs, unmasks the k most influential long-range tokens of a window, and
measures what share of the full context's loss reduction they recover (Golowich et al., ICML 2025, arXiv 2502.16792).

Importing the package imports neither torch nor olmo; the modules that need them import them.

**Shapes are in the names.** The name of a tensor or array ends with its dimensions in order, one letter each: ``x_RYD`` has
the shape [R, Y, D]. Every module uses this one alphabet:

| Letter | Dimension |
|---|---|
| A | labels of a window: the target, then tokens drawn in its place |
| B | rows of a training batch |
| C | chunks of a training row |
| D | width of the model (``d_model``) |
| E | width of one attention head |
| F | (selector, context) choices |
| G | documents of a token store |
| H | attention heads |
| J | candidate positions of a window |
| K | measured values of k |
| L | local tokens of a window (``local_len``) |
| M | long-range positions of a window (``num_long_range``) |
| N | visible sets per window |
| P | tokens of a known prefix, whose keys and values are given |
| Q | tokens that query |
| R | rows of a forward pass (a row is one window under one visible set), or rows of a table part |
| S | size of a visible set |
| T | tokens of a row or window (``train_len`` or ``full_len``; one more where the target is included) |
| U | bootstrap units (documents, or groups of them) |
| V | vocabulary entries |
| W | windows |
| X | bootstrap resamples |
| Y | tokens of a row that are computed |

A lower-case letter is a part of that dimension: ``windows_w`` are some of the W windows. A digit is a dimension of that
fixed size. Scalars and lists of Python objects have no suffix.
"""

__version__ = "0.1.0"
