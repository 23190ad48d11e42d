"""The files that data are read from: found, decompressed and parsed."""
