"""The format of a Run on disk.

`schema` has the columns of the rows, and `manifest` has the typed manifest, which `typed_json` checks. `files` reads
and writes shards, the files of rows and of adversarials; `read_parquet` reads the rows within limits. `checksums` lists
the files with size and hash, and `shards` reads them through this list. Only `writer` writes a Run, and `lock` excludes
a second writer. `folders` names the default folder of a Run. `resume` finds the stored outcomes of samples.
"""
