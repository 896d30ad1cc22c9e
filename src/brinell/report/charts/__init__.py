"""Draw figures as SVG for HTML pages. A figure is a `brinell.results.analyses.Figure` or one of the classes in `types`.

- `chart`: a figure as HTML: caption, legend, SVG, and its data as a table.
- `xy`: lines, steps, points and histograms on two axes; `bars`: bars, waterfalls and matrices with names on the left.
- `types`: the data of waterfalls, histograms and reference lines; `scales`: axes, ticks and number formats.
- `svg`: SVG elements; `png`: an image as a PNG data URI; `matplotlib_style`: what matplotlib figures share.
"""
