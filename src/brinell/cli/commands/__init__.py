"""One file per command of `brinell`: its function `command`, or `app` for a group of subcommands."""
