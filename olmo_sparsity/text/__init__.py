"""From text to tokens: corpora, tokenizers, token files, windows, and classes of targets."""
