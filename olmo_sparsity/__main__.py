"""``python -m olmo_sparsity`` is ``olmo-sparsity``."""

from olmo_sparsity.cli.app import main

if __name__ == "__main__":
    main()
