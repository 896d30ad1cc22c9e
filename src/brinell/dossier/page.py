"""The HTML page of a dossier: one file without scripts, fonts or images from elsewhere."""

import json
from html import escape
from importlib.resources import files
from typing import Any

from brinell.dossier import closing_sections, result_sections, system_sections
from brinell.dossier.check_dossier import canonical
from brinell.dossier.markup import DossierView, badge

SECTIONS = (
    system_sections.summary, system_sections.system, system_sections.model, system_sections.data,
    system_sections.threat, result_sections.attacks, result_sections.results, result_sections.subgroups,
    result_sections.bracket, result_sections.checks, result_sections.untested, result_sections.levels,
    closing_sections.risk, closing_sections.retest, closing_sections.clauses, closing_sections.files,
    closing_sections.signature, result_sections.annex,
)  # fmt: skip
KIND = "Robustness dossier"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
UNSIGNED = "0" * 128
BEFORE = '<script type="text/plain" id="signature">'


def page(payload: dict[str, Any]) -> str:
    """Return the page of a payload; the place of its signature is filled with zeros."""
    payload = json.loads(canonical(payload))  # in the order of the stored data, whose page is the same
    view = DossierView(payload)
    sections = [section for section in (make(view) for make in SECTIONS) if section is not None]
    title, style = escape(payload["title"]), (files("brinell.dossier") / "files" / "dossier.css").read_text("utf-8")
    contents = "".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>\n' for s in sections)
    body = "".join(
        f'<section id="{s.id}">\n<h2><span class="no">{i}</span> {escape(s.title)}</h2>\n{s.body}</section>\n'
        for i, s in enumerate(sections, 1)
    )
    draft = badge("fail", "draft, not signed") if payload["public_key"] is None else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{KIND}: {title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<style>\n{style}</style>\n</head>\n<body>\n'
        f'<a class="skip" href="#content">Skip to the content</a>\n<header>\n<p class="kind">{KIND} {draft}</p>\n'
        f"<h1>{title}</h1>\n<p>Issued on {escape(payload['date'])}, made with Brinell {payload['brinell']}</p>\n"
        f'</header>\n<nav aria-label="Contents"><ol>\n{contents}</ol></nav>\n<main id="content">\n{body}</main>\n'
        f'<script type="application/json" id="payload">{canonical(payload)}</script>\n{BEFORE}{UNSIGNED}</script>\n'
        "</body>\n</html>\n"
    )
