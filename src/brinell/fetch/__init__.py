"""Download published files and unpack archives: a file is complete and checked, or absent.

`cache` keeps a file and its digest, `download` transfers it and resumes after a broken connection, `archive` unpacks
it safely, `matlab` reads arrays of MATLAB files. Data sets and model zoos call `obtain` and `unpack`.
"""

from brinell.fetch.archive import unpack
from brinell.fetch.cache import Wanted, obtain, offline, refuse_page, sha256
from brinell.fetch.download import Progress
from brinell.fetch.matlab import is_matlab, matlab_arrays

__all__ = ["Progress", "Wanted", "is_matlab", "matlab_arrays", "obtain", "offline", "refuse_page", "sha256", "unpack"]
