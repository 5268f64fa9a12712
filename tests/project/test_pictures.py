"""The pictures of docs/ are what their script draws, and true."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.project.test_imports import MAY_IMPORT
from tools.pictures import DOCS, FILES, PICTURES, ROOMS, rows_of


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    drawn = PICTURES[name]()
    assert (DOCS / name).read_text() == drawn, "run make docs"
    ET.fromstring(drawn)
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert f"]({name})" in pages


def test_folders_import_only_those_below_them_in_the_picture() -> None:
    places = {name.rstrip("/"): room for names, room in ROOMS.items() for name in names.split(", ")}
    for importer, imported in MAY_IMPORT.items():
        for name in imported & set(places) if importer in places else ():
            above, below = places[importer], places[name]
            assert above.row + above.rows <= below.row, (importer, name)
            assert set(above.columns) & set(below.columns), (importer, name)


def test_the_pictures_show_all_folders_and_all_files() -> None:
    assert set(ROOMS) == set(rows_of("architecture.md", "| folder | contains | does not know |"))
    assert {name for names in ROOMS for name in names.split(", ")} >= {
        f"{name}/" for name in set(MAY_IMPORT) - {"", "api"}
    }
    assert set(FILES) == set(rows_of("glossary.md", "| file | contains |"))
