"""The command line: options become a configuration, and one function of another room does the work."""
