"""One script a figure: reads the Parquet tables of a measurement, writes PNG and PDF. Imports neither torch nor a model.

``python -m analysis --run runs/demo`` draws all of them; ``python -m analysis.figure4 --run runs/demo`` draws one.
"""
