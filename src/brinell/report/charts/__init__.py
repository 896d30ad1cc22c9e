"""Charts as SVG for pages; figures are `brinell.results.analyses.Figure` or the types in `types`.

- `chart`: a figure as HTML: caption, legend, SVG, and its data as a table.
- `xy`: lines, steps, points and histograms on two axes; `bars`: bars, waterfalls and matrices with names on the left.
- `types`: waterfalls, histograms and reference lines; `scales`: axes, ticks and number formats.
- `svg` and `png`: elements and images as text; `matplotlib_style`: what matplotlib figures share.
"""
