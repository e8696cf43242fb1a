"""What a result may depend on besides its configuration, as manifests record it: commit, versions, machine."""

from __future__ import annotations

from olmo_sparsity.storage.environment import environment


def test_the_version_of_each_package_that_numbers_come_from_is_recorded() -> None:
    """The weights, the text and its tokens, the arithmetic, and the intervals."""
    weights, text = {"ai2-olmo", "transformers", "gguf", "accelerate"}, {"datasets", "tokenizers", "pyarrow"}
    assert set(environment()["packages"]) == weights | text | {"torch", "numpy", "scipy"}
