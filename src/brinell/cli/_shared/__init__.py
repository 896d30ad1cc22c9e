"""Parts that the commands of `brinell` share.

- `options`: the options, and groups of options that commands take as one parameter; `panels`: the panels of the help;
  `completion`: what a shell completes; `completed`: the options whose values are completed.
- `load`: models and data named on the command line; `chosen`: plans and workers named on the command line.
- `terminal`: tables, lines, JSON and progress bars; `run_output`: a Run or its estimated cost.
- `missing`: the message about all options that a call lacks.
"""
