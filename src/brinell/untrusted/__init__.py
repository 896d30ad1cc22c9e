"""Read files of others within limits, so that a small file never costs much memory or time.

`limits` says how much a file may cost, and opens only plain files. `numbers` parses numbers, `json_files` JSON,
`toml_files` TOML, `zip_files` checks zip archives, `arrays` reads .npy, .npz and .safetensors files, `texts` makes text
safe for terminals and spreadsheets. The readers raise a ValueError (or an OSError) for every defect; their callers turn
it into an error with expected, got and remedy.
"""

from brinell.errors import printable
from brinell.untrusted.arrays import checked_safetensors, npz_arrays, refuse_many_tensors, safetensors_arrays
from brinell.untrusted.json_files import parse_json, read_json
from brinell.untrusted.limits import allowed_bytes, open_plain, plain_file, read_plain, refuse_large
from brinell.untrusted.numbers import parse_number, parse_share
from brinell.untrusted.texts import cleaned, csv_cells
from brinell.untrusted.toml_files import parse_toml, read_toml
from brinell.untrusted.zip_files import open_zip

__all__ = [
    "allowed_bytes", "checked_safetensors", "cleaned", "csv_cells", "npz_arrays", "open_plain", "open_zip",
    "parse_json", "parse_number", "parse_share", "parse_toml", "plain_file", "printable", "read_json", "read_plain",
    "read_toml", "refuse_large", "refuse_many_tensors", "safetensors_arrays",
]  # fmt: skip
