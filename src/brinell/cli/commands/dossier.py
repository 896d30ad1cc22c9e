"""The command `brinell dossier`: write a signed file with the evidence of Runs."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.dossier import check_again, read_key, write_checker, write_dossier
from brinell.dossier import new_key as make_key
from brinell.dossier import template as empty_description
from brinell.dossier.check_dossier import Refused
from brinell.dossier.system import declared, missing_fields
from brinell.dossier.write import CHECKER
from brinell.errors import InputError

PAGE = Path("dossier.html")


def command(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of one or several Runs.", metavar="RUN", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .html, .json, or .pdf with a .json file beside it.")
    ] = PAGE,
    key: Annotated[Path | None, typer.Option("--key", "-k", help="File with the private key that signs.")] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Write a draft without a signature.")] = False,
    system: Annotated[
        Path | None,
        typer.Option("--system", "-s", help="TOML file that describes the system; start from --template."),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(help="CSV file with subgroups: a column id, and a column for each grouping, such as age."),
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Day of issue, YYYY-MM-DD; default: today (UTC). It makes the file repeatable.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title; default: the name of the system.")] = "",
    checker: Annotated[
        bool, typer.Option("--checker", help="Also write check_dossier.py, which checks a dossier without Brinell.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Check this dossier, and RUN against it; exit code 1 if it is refused."),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Print an empty description of a system and exit.")
    ] = False,
    new_key: Annotated[
        Path | None, typer.Option("--new-key", help="Make a key in this file, print its fingerprint, and exit.")
    ] = None,
    public_key: Annotated[
        bool, typer.Option("--public-key", help="Print the public key of --key, for those who check, and exit.")
    ] = False,
) -> None:
    """Write one offline, signed file that shows a notified body or a customer what was tested, found and not tested.

    First make a key and an empty description of your system, and fill it in:

    brinell dossier --new-key key.pem

    brinell dossier --template > system.toml

    Then:

    brinell dossier RUN --key key.pem --system system.toml --checker
    """
    if check is not None:
        _check(check, runs or [])
    elif template:
        typer.echo(empty_description(), nl=False)
    elif new_key is not None:
        made = make_key(new_key)
        typer.echo(
            f"{new_key}: private key, keep it secret\nfingerprint: {made.fingerprint}\n{made.public_pem}", nl=False
        )
    elif public_key:
        typer.echo(read_key(_given(key, "--key KEY")).public_pem, nl=False)
    elif not runs and checker:
        typer.echo(write_checker(out.parent))
    else:
        if not runs:
            raise InputError(
                expected="the folder of a Run", got="none", remedy="brinell dossier RUN --key KEY --out FILE."
            )
        written = write_dossier(
            runs, out, key=key, unsigned=unsigned, system=system, groups=groups, date=date, title=title, checker=checker
        )
        for path in written:
            typer.echo(f"{path}, {path.stat().st_size / 1e3:,.0f} kB")
        empty = missing_fields(declared(system).fields)
        if empty:
            typer.echo(f"empty fields of the system, which the dossier lists as gaps: {', '.join(empty)}")
        if key is not None:
            mark = read_key(key).fingerprint
            typer.echo(f"fingerprint: {mark}")
            how = f'python {CHECKER} {out} --key "{mark}"' if checker else f"brinell dossier --check {out}"
            typer.echo(f"check: {how}")


def _check(path: Path, runs: list[Path]) -> None:
    if not path.is_file():
        raise InputError(expected="the file of a dossier", got=f"{path}, which is none", remedy="Check the path.")
    try:
        typer.echo("\n".join(check_again(path, runs)))
    except Refused as error:
        typer.echo(f"REFUSED: {path}: {error}", err=True)
        raise typer.Exit(1) from None


def _given(path: Path | None, what: str) -> Path:
    if path is None:
        raise InputError(expected=what, got="nothing", remedy=f"Add {what}.")
    return path
