"""Charts as SVG and as matplotlib figures."""
