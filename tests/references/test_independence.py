"""References share no code with what is held to them."""

import ast
from pathlib import Path

import pytest

FILES = [path for path in sorted(Path(__file__).parent.glob("*.py")) if not path.name.startswith(("test_", "__"))]
OUTSIDE = ("__future__", "collections", "math", "torch", "typing")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_reference_imports_torch_and_other_references_alone(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    assert "torch" in found
    ours = [
        name for name in found if name.split(".")[0] not in ("__future__", "collections", "math", "torch", "typing")
    ]
    assert all(name.startswith("tests.references.") for name in ours)
