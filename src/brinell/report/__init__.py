"""Reports of Runs. The modules read stored results and never import torch.

- `write`: a report as text or as a file; `formats`: Markdown, LaTeX, JSON, CSV and JUnit; `model_card`: a snippet
  for a model card; `text_tables`: one table as Markdown or LaTeX; `gate`: whether a release may pass.
- `document`: the HTML page; `page`: templates and assets from `files/`.
- `outcomes`, `figures`, `examples`: what the page shows of a Run; `advice`: remedies; `paper_text`: text for a paper.
- `charts/`: charts as SVG; `plots`: the same figures with matplotlib; `facts`: a Run as plain data.
"""

from brinell.report.write import text, write

__all__ = ["text", "write"]
