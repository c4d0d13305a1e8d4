"""The command line: one module per subcommand, and the only code of the package that prints."""
