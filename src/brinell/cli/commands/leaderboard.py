"""The command `brinell leaderboard`: a static site that ranks models."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.terminal import print_json
from brinell.leaderboard.site import build as build_site
from brinell.leaderboard.site import serve as serve_site
from brinell.report import text

app = typer.Typer(no_args_is_help=True, help="Build and serve a static site that ranks models.")

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
        Path, typer.Option("--out", "-o", help="Folder for the site; an older site in it is replaced.")
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


@app.command("serve")
def serve(
    site: Annotated[Path, typer.Argument(help="Folder of a site that brinell leaderboard build wrote.")] = SITE,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 chooses a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
) -> None:
    """Serve a site on this machine only, and open it in the browser. Ctrl-C stops."""
    serve_site(site, port, browser=not no_open, tell=lambda url: typer.echo(f"{url} (Ctrl-C to stop)"))
