"""One file a figure: reads the Parquet tables of a measurement, writes PNG and PDF. Imports neither torch nor a model.

``python -m analysis figure4 --run runs/demo`` draws one; ``olmo-sparsity figures --run runs/demo`` all of a run.
"""
