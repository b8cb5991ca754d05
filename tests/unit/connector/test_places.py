"""Where the namespaces and tables of a catalog are."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge import InputError, LakeTable
from lakemerge.connector.places import NamespaceExistsError, NoSuchNamespaceError, Places


def places(path: Path, allowed: tuple[str, ...] = ()) -> Places:
    return Places(str(path), {}, allowed)


def table(path: Path) -> LakeTable:
    return LakeTable.create(path, "k INT", key=["k"])


def test_folders_are_namespaces_and_folders_with_a_log_are_tables(tmp_path: Path) -> None:
    table(tmp_path / "shop" / "orders")
    table(tmp_path / "shop" / "_hidden")
    table(tmp_path / "loose")
    (tmp_path / "shop" / "no table").mkdir()
    (tmp_path / "_internal").mkdir()
    found = places(tmp_path)
    assert found.namespaces() == ["default", "shop"]
    assert found.tables(["shop"]) == ["orders"]
    assert found.tables(["default"]) == []


def test_a_namespace_is_there_before_its_first_table(tmp_path: Path) -> None:
    found = places(tmp_path)
    with pytest.raises(NoSuchNamespaceError, match="no namespace 'shop'"):
        found.tables(["shop"])
    found.create(["shop"], {"comment": "all of it", "owner": "me"})
    assert found.tables(["shop"]) == []
    assert found.properties(["shop"]) == {"comment": "all of it", "location": f"{tmp_path}/shop"}
    with pytest.raises(NamespaceExistsError):
        found.create(["shop"], {})
    assert found.remove(["shop"])
    assert not (tmp_path / "shop").exists()
    assert not found.remove(["shop"])


def test_a_namespace_with_files_stays(tmp_path: Path) -> None:
    found = places(tmp_path)
    found.create(["shop"], {})
    (tmp_path / "shop" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"has files, such as shop/notes\.txt"):
        found.remove(["shop"])
    assert (tmp_path / "shop" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "_a", ".a", "a/b", "..", "a\\b", "a:b", "a$history"])
def test_names_that_no_folder_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of a table"):
        places(tmp_path).path(["shop"], name)
    with pytest.raises(InputError, match="cannot be the name of a namespace"):
        places(tmp_path).path([name], "t")


@pytest.mark.parametrize("namespace", [[], ["a", "b"]])
def test_a_table_is_in_one_namespace(tmp_path: Path, namespace: list[str]) -> None:
    with pytest.raises(InputError, match=r"CATALOG\.NAMESPACE\.TABLE"):
        places(tmp_path).path(namespace, "t")


def test_a_catalog_of_paths_takes_absolute_ones_in_allowed_folders(tmp_path: Path) -> None:
    anywhere = Places(None, {})
    assert anywhere.path([], f"{tmp_path}/t") == f"{tmp_path}/t"
    with pytest.raises(InputError, match="no absolute path"):
        anywhere.path([], "t")
    limited = Places(None, {}, (f"{tmp_path}/a",))
    assert limited.path([], f"{tmp_path}/a/t") == f"{tmp_path}/a/t"
    (tmp_path / "link").symlink_to(tmp_path)
    for outside in ("b/t", "a/../b/t", "ab/t", "link/b/t"):
        with pytest.raises(InputError, match="none of the folders"):
            limited.path([], f"{tmp_path}/{outside}")
