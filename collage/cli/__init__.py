"""The command line: one command per file, what they share in files of its own."""
