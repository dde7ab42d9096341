"""The notebooks run from the first cell to the last, and are committed without outputs."""

from pathlib import Path

import pytest

from repository import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = ROOT / "examples"
QUICK = {
    "first_speed_up": "<td>suffix</td>", "invent_a_drafter": "<td>copy-last(budget=fixed)</td>",
    "diffusion_canvas": "threshold: ",
}  # fmt: skip
LABORATORY = {"train_a_head": "<td>eagle(", "certify_a_model": "suffix"}
"""Notebook -> a piece of text that its cells show."""


def run(name: str, folder: Path) -> str:
    """Run a notebook, and return all that its cells print and show."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=None, resources=resources).execute()
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return "".join(
        output.get("text") or output.get("data", {}).get("text/html", "") for output in outputs
    )


@pytest.mark.wide
@pytest.mark.parametrize("name", QUICK)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    assert QUICK[name] in run(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABORATORY)
def test_a_notebook_of_the_laboratory_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("paradecode_lab")
    pytest.importorskip("torch")
    assert LABORATORY[name] in run(name, tmp_path)
    first = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells[0].source
    assert 'pip install "paradecode[lab' in first


def test_notebooks_have_no_outputs() -> None:
    found = sorted(FOLDER.glob("*.ipynb"))
    assert {path.stem for path in found} == {*QUICK, *LABORATORY}
    for path in found:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code
        assert not [cell for cell in code if cell.outputs or cell.execution_count is not None]
