"""Reports of Runs: one file for the browser, and its parts for other pages; reads results only, never torch."""
