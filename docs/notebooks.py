"""Write a documentation page for every notebook in examples/, with its stored outputs.

Usage: python docs/notebooks.py    run all notebooks and store what they show (needs nbclient and ipykernel)
"""

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# The first of these that an output has is shown.
KINDS = ("text/html", "image/png", "text/plain")


def write(folder: Path) -> None:
    """Write all pages and their pictures."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        (folder / f"{path.stem}.md").write_text("\n\n".join(page(path, folder)) + "\n")


def page(path: Path, folder: Path) -> Iterator[str]:
    """Yield the parts of a page in Markdown; pictures are written into the folder."""
    for i, cell in enumerate(json.loads(path.read_text())["cells"]):
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for j, output in enumerate(cell.get("outputs", ())):
            yield _shown(output, folder / f"{path.stem}-{i}-{j}.png")


def _shown(output: dict[str, Any], picture: Path) -> str:
    """Return an output as Markdown."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    kind = next(k for k in KINDS if k in output["data"])
    data = output["data"][kind]
    if kind == "image/png":
        picture.write_bytes(base64.b64decode("".join(data)))
        return f"![Output of the cell above]({picture.name})"
    return f"```{{raw}} html\n{''.join(data)}\n```" if kind == "text/html" else f"```text\n{''.join(data)}\n```"


def run(path: Path) -> None:
    """Run a notebook in an empty folder and store its outputs, without times and versions."""
    import nbclient
    import nbformat

    book = nbformat.read(path, 4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(book, resources={"metadata": {"path": folder}}).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
    book.metadata.language_info = {"name": "python"}
    path.write_text(nbformat.writes(book) + "\n")


def _merged(outputs: list[Any]) -> list[Any]:
    """Return the outputs with successive prints in one; a picture needs no text beside it."""
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and found and found[-1].output_type == "stream":
            found[-1].text += output.text
            continue
        if "image/png" in output.get("data", {}):
            output.data.pop("text/plain", None)
        found.append(output)
    return found


def main() -> None:
    """Run all notebooks."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        run(path)


if __name__ == "__main__":
    main()
