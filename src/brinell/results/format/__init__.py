"""The format of a Run on disk.

`schema` has the columns of the rows, `manifest` the typed manifest (`typed_json` checks it), `files` reads and
writes shards, `writer` is the only writer, `lock` keeps it the only one, and `resume` finds the stored outcomes of
samples.
"""
