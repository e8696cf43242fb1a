"""Figures: one file each, drawn from the frame of estimates on one drawing module."""
