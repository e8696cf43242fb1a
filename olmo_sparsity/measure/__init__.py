"""Measurements on a trained model: influence, context curve, planted truth."""
