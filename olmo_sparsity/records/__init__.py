"""What every room names: each fact about a selector is declared here, once."""
