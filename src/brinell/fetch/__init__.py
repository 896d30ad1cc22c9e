"""Published files: fetched whole and checked into their place, or not there at all; archives unpacked safely."""

from brinell.fetch.archive import unpack
from brinell.fetch.cache import Wanted, obtain, offline, refuse_page, sha256
from brinell.fetch.download import Progress

__all__ = ["Progress", "Wanted", "obtain", "offline", "refuse_page", "sha256", "unpack"]
