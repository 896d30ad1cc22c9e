"""One file per command of `brinell`, named like the command; `command` is its function, `app` a group of them."""
