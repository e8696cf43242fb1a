"""Measurements on a trained model, a file each: influence and accuracy on synthetic tasks.

``measurement`` writes the tables of all. Folders, lower ones first: ``visible``, what is visible and its losses; ``setup``,
what is opened and checked before; ``selection``, what chooses.
"""
