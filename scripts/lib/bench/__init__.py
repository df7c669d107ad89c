"""The command ``scripts/bench``: one file for each subcommand, which parses options and prints what a study found."""
