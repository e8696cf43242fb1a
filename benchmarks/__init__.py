"""The engine against its peers and against the machine's limit; reading at any size; kills. Not installed."""
