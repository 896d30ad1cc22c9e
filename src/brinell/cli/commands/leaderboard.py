"""The command `brinell leaderboard`: a static site that ranks models."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.terminal import print_json
from brinell.errors import InputError
from brinell.leaderboard.site import build as build_site
from brinell.leaderboard.site import serve as serve_site
from brinell.leaderboard.site.boards import boards
from brinell.leaderboard.site.entries import collect
from brinell.leaderboard.tables import FORMATS, as_table
from brinell.report import text
from brinell.report.text_tables import known_format
from brinell.report.write import save

app = typer.Typer(no_args_is_help=True, help="Rank models: a static site, or tables for papers.")

SITE = Path("leaderboard")


@app.command("build")
def build(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of Runs to add as records.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Folder of records: dataset/threat/name.json, or record.json in Runs.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the site; an earlier site there is replaced.")
    ] = SITE,
    no_published: Annotated[
        bool, typer.Option("--no-published", help="Leave out the 236 published records of RobustBench.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Build a static site from Runs, records and the published records."""
    site = build_site(
        runs or [], records=records, out=out, with_published=not no_published, report=lambda run: text([run])
    )
    if json:
        print_json({"path": str(site.path), "boards": site.boards, "runs": site.runs})
    else:
        typer.echo(str(site))


@app.command("table")
def table(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of Runs to add as records.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="cifar10, cifar100, imagenet, …")] = "cifar10",
    threat: Annotated[str, typer.Option(help="Linf, L2, corruptions or corruptions_3d.")] = "Linf",
    format: Annotated[
        str | None, typer.Option(help="md, tex, csv, or bib for the papers; default: by the ending of --out, else md.")
    ] = None,
    top: Annotated[int | None, typer.Option(help="Number of models to show, the best first.", min=1)] = None,
    records: Annotated[
        Path | None, typer.Option(help="Folder of records: dataset/threat/name.json, or record.json in Runs.")
    ] = None,
    no_published: Annotated[
        bool, typer.Option("--no-published", help="Leave out the 236 published records of RobustBench.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: standard output.")] = None,
) -> None:
    """Print the records of a board as a Markdown, LaTeX or CSV table, or their papers as BibTeX."""
    ending = out.suffix.lstrip(".") if out is not None and format is None else ""
    chosen = known_format(format or ending or "md", FORMATS)
    every = boards(collect(runs or [], records, not no_published))
    found = [board for board in every if (board.dataset, board.threat) == (dataset, threat)]
    if not found:
        raise InputError(
            expected="a data set and a threat with records",
            got=f"{dataset}/{threat}",
            remedy="Choose another --dataset or --threat, or pass Runs with this data set and threat.",
        )
    made = as_table([e.record for board in found for e in board.entries[:top]], chosen)
    if out is None:
        typer.echo(made, nl=False)
    else:
        typer.echo(str(save(out, made)))


@app.command("serve")
def serve(
    site: Annotated[Path, typer.Argument(help="Folder of a site that brinell leaderboard build wrote.")] = SITE,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 chooses a free port.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
) -> None:
    """Serve a site on this machine only, and open it in the browser. Ctrl-C stops."""
    serve_site(site, port, browser=not no_open, tell=lambda url: typer.echo(f"{url} (Ctrl-C to stop)"))
