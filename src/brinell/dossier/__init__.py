"""The dossier: one signed file with the evidence of Runs, for a notified body or a customer.

`write` signs a dossier and stores it as HTML, JSON or PDF (`pdf`). `payload` is its content: `system` reads what the
user declares, `groups` the subgroups, `samples` packs the outcome of every sample. `page` makes the HTML from
`system_sections`, `result_sections` and `closing_sections` with the parts of `markup`; `clauses` maps laws and
standards to evidence. `keys` signs with Ed25519. `check_dossier` is the stand-alone checker, which also computes the
numbers that a page shows. No file here imports torch.
"""

from brinell.dossier.keys import PrivateKey, new_key, read_key
from brinell.dossier.payload import make_payload
from brinell.dossier.system import template
from brinell.dossier.write import check_again, write_checker, write_dossier

__all__ = [
    "PrivateKey", "check_again", "make_payload", "new_key", "read_key", "template", "write_checker", "write_dossier",
]  # fmt: skip
