"""One thin module per subcommand: parse, call, print."""
