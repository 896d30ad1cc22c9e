"""A Run on disk: columns, manifest, files, the writer and its lock, what is left to do on resume."""
