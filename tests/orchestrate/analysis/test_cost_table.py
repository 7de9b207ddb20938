"""Cost table files: read back as written, and refused where they could not have been written."""

import json

import pytest

from orchestrate.analysis.cost_table import TABLES_DIR, is_table_id, read_cost_table
from orchestrate.analysis.fit import table_sha256
from orchestrate.errors import UsageError

SHIPPED = TABLES_DIR / "dense-h2560-h200-bf16.json"


@pytest.fixture
def edited(tmp_path):
    """A function: the shipped table after `change`, with its digest made anew."""

    def edit(change):
        document = json.loads(SHIPPED.read_text())
        change(document)
        document["sha256"] = table_sha256(document["milli_us"])
        (tmp_path / "table.json").write_text(json.dumps(document))
        return tmp_path / "table.json"

    return edit


def test_the_shipped_table_is_read(edited):
    table = read_cost_table(edited(lambda _: None))
    assert table.table_id == "dense-h2560-h200-bf16"
    assert table == read_cost_table(SHIPPED)


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None, 2**53, 2**60])
def test_a_coefficient_that_is_none_or_that_no_reader_keeps_is_refused(edited, value):
    with pytest.raises(UsageError, match=r"milli_us\.gdn_level"):
        read_cost_table(edited(lambda one: one["milli_us"].update(gdn_level=value)))


@pytest.mark.parametrize("name", ["", "a b", "a\x1b[2J", "\ud800", "../x/y", "x" * 201])
def test_a_name_that_is_none_is_refused(edited, name):
    assert not is_table_id(name)
    with pytest.raises(UsageError, match="table_id"):
        read_cost_table(edited(lambda one: one.update(table_id=name)))


def test_a_coefficient_that_was_edited_alone_is_found(tmp_path):
    document = json.loads(SHIPPED.read_text())
    document["milli_us"]["gdn_level"] += 1
    (tmp_path / "table.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="have the digest"):
        read_cost_table(tmp_path / "table.json")
