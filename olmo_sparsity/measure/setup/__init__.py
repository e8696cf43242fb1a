"""What is opened and checked before anything is measured: the model, its text, whether it can be measured."""
