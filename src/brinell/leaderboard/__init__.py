"""Leaderboards: rules, records, and the site.

- `definitions`: the leaderboards, with their radius, number of samples and plan.
- `benchmark`: measure a model under the rules of a leaderboard (`brinell.benchmark`).
- `records`: one record per model and threat; `robustbench.csv` holds published records, `papers.csv` the titles and
  authors of their papers, `notes.csv` their licences and footnotes.
- `tables`: records as Markdown, LaTeX and CSV, and their papers as BibTeX (`brinell leaderboard table`).
- `site/`: a static site that ranks records and Runs (`brinell leaderboard`).
"""
