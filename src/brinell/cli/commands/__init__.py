"""One file per verb, named like the verb."""
