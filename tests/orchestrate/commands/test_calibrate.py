"""`orchestrate calibrate` from outside: exit codes, JSON, files."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "certificate"
TABLES = ROOT / "harness" / "tables"
SHARED = ROOT.parent / "shared" / "data" / "h200_dense_h2560_cells.jsonl"
MEASURED = ["--device-name", "NVIDIA H200", "--dtype", "torch.bfloat16", "--hidden", "2560"]


@pytest.fixture
def calibrate(tmp_path):
    """A function: run the command in an empty folder; exit code, the JSON on standard output, standard error."""

    def run(*arguments, as_json=True):
        argv = [sys.executable, "-m", "orchestrate", "calibrate", *map(str, arguments)]
        argv += ["--json"] if as_json else []
        answer = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert "Traceback" not in answer.stderr, answer.stderr
        return (
            answer.returncode,
            json.loads(answer.stdout) if as_json and answer.stdout else answer.stdout,
            answer.stderr,
        )

    return run


@pytest.fixture
def cells(tmp_path):
    return shutil.copy(GOLDEN / "cells.jsonl", tmp_path / "cells.jsonl")


def edited(path, line, change):
    rows = [json.loads(row) for row in Path(path).read_text().splitlines()]
    change(rows[line - 1])
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_fit_gives_table_hash_and_three_blocks(calibrate, cells):
    code, answer, _ = calibrate("fit", "--cells", cells)
    assert code == 0
    table = answer["integer_table_milli_us"]
    assert answer["integer_table_sha256"] == hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    assert {name: block["cells"] for name, block in answer["metrics"].items()} == {"all": 16, "held_out": 8, "train": 8}
    assert answer["measured_envelope"] is None
    assert calibrate("fit", "--cells", cells)[1] == answer


def test_fit_of_the_published_cells_is_the_published_document(calibrate):
    if not SHARED.is_file():
        pytest.skip("the published cells do not lie beside this checkout")
    published = json.loads(SHARED.with_name("h200_dense_h2560_published.json").read_text())
    code, answer, _ = calibrate("fit", "--cells", SHARED, "--holdout", "cp4|g4")
    assert code == 0
    for name in ("integer_table_milli_us", "integer_table_sha256", "metrics"):
        assert answer[name] == published[name]
    code, answer, _ = calibrate("fit", "--cells", SHARED, *MEASURED)
    assert answer["integer_table_sha256"] == "50b7cac2f64323670c6b13507e4610de4366a356238296587ac189ed1f591412"
    assert answer["comparison"]["standing"] == "equivalent"


def test_the_shipped_certificate_holds_and_is_the_table_that_the_harness_uses(calibrate):
    for path in sorted(TABLES.glob("*.json")):
        table = json.loads(path.read_text())
        certificate = TABLES / "certificates" / path.name
        code, answer, _ = calibrate("check", certificate, "--expect-sha256", table["certificate_sha256"])
        assert (code, answer["holds"], answer["verdict"]) == (0, True, "certified")
        held = json.loads(certificate.read_text())
        assert held["integer_table_milli_us"] == table["milli_us"]
        assert held["admitted"] == table["envelope"]
        assert len(held["exclusions"]) == 16
        assert not any(exclusion["in_input"] for exclusion in held["exclusions"])


def test_certify_writes_a_certificate_a_table_and_a_page_and_check_agrees(calibrate, cells, tmp_path):
    code, answer, _ = calibrate(
        "certify", "--cells", cells, *MEASURED, "--shipped", "none", "--table-id", "mine", "-o", "c.json",
        "--table-file", "t.json", "--page", "c.html",
    )  # fmt: skip
    assert (code, answer["verdict"]) == (0, "certified")
    assert json.loads((tmp_path / "t.json").read_text())["certificate_sha256"] == answer["sha256"]
    page = (tmp_path / "c.html").read_text()
    assert page.count("<figure>") == 16
    assert "<script" not in page
    code, checked, _ = calibrate("check", "c.json")
    assert (code, checked["holds"], checked["sha256"]) == (0, True, answer["sha256"])
    code, _, _ = calibrate(
        "certify", "--cells", cells, *MEASURED, "--shipped", "none", "--table-id", "mine", "-o", "d.json"
    )
    assert (tmp_path / "c.json").read_bytes() == (tmp_path / "d.json").read_bytes()
    assert list(tmp_path.glob(".*")) == []


def test_people_get_lines_with_the_verdict_and_what_it_does_not_prove(calibrate, cells):
    code, text, _ = calibrate("certify", "--cells", cells, as_json=False)
    assert code == 0
    assert text.startswith("CERTIFIED")
    assert "does not prove:" in text
    assert "admitted: nowhere" in text


def test_gates_that_fail_give_exit_code_1_and_no_table(calibrate, cells, tmp_path):
    for line in range(2, 17, 2):  # the odd groups
        edited(cells, line, lambda row: [each.__setitem__(5, 1e4 / each[5]) for each in row["candidates"]])
    code, answer, said = calibrate("certify", "--cells", cells, *MEASURED, "-o", "c.json", "--table-file", "t.json")
    assert (code, answer["verdict"], answer["admitted"]) == (1, "gates-failed", None)
    assert not (tmp_path / "t.json").exists()
    assert "no table is admitted" in said
    assert calibrate("check", "c.json")[0] == 0  # it holds: it truly says that the gates fail


def test_too_little_evidence_gives_exit_code_4_with_every_gap(calibrate, cells):
    edited(cells, 3, lambda row: row["candidates"][0].__setitem__(6, 7))
    edited(cells, 4, lambda row: row["candidates"][1].__setitem__(6, 1))
    for command in ("fit", "certify"):
        code, answer, said = calibrate(command, "--cells", cells)
        assert code == 4
        assert answer["error"]["verdict"] == answer["error"]["code"] == "not-enough-evidence"
        assert len(answer["error"]["gaps"]) == 2
        assert "cells.jsonl:3" in said
        assert "remedy:" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no input"),
        (["--cells", "nowhere.jsonl"], "does not exist"),
        (["--cells", "cells.jsonl", "--evidence", "cells.jsonl"], "two kinds of input"),
        (["cells.jsonl"], "without --evidence or --cells"),
        (["--cells", "cells.jsonl", "--holdout", "cp9"], "no cell key contains this text"),
        (["--cells", "cells.jsonl", "--holdout", ".*"], "no cell key contains this text"),
        (["--cells", "cells.jsonl", "--exclude", "unheard"], "does not list it"),
        (["--cells", "cells.jsonl", "--dtype", "torch.bfloat16"], "a device, a dtype and a hidden size"),
        (["--cells", "cells.jsonl", "--cell-set", "unheard"], "the manifest has main"),
        (["--cells", "cells.jsonl", "--device-name", "a\x1b[2J", "--dtype", "d", "--hidden", "1"], "is no name"),
        (["--cells", "cells.jsonl", "--repeat", "1"], "1 is not in the range"),
        (["--cells", "cells.jsonl", "--shipped", "unheard"], "no table 'unheard'"),
        (["--cells", "cells.jsonl", "--table-id", "a b"], "not a table id"),
        (["--evidence", "cells.jsonl"], "not the cell row"),
        (["--evidence", "."], "holds no rows.jsonl"),
        (["--cells", "cells.jsonl", "--manifest", "cells.jsonl"], "not JSON"),
    ],
)
def test_a_wrong_command_line_gives_exit_code_2(calibrate, cells, arguments, said):
    code, _, error = calibrate("certify", *arguments)
    assert code == 2, error
    assert said in error


def test_damage_gives_exit_code_2_and_names_the_line(calibrate, cells):
    text = Path(cells).read_text().splitlines()
    text[4] = text[4][:50]
    Path(cells).write_text("\n".join(text) + "\n")
    code, answer, _ = calibrate("certify", "--cells", cells)
    assert code == 2
    assert "cells.jsonl:5" in answer["error"]["gaps"][0]


def test_the_manifest_says_what_is_unexpected_and_what_is_missing(calibrate, cells):
    code, answer, _ = calibrate("fit", "--cells", cells, "--manifest", ROOT / "harness" / "sets" / "manifest.json")
    assert code == 4
    assert all("is unexpected" in gap or "expects it" in gap or "are missing" in gap for gap in answer["error"]["gaps"])
    assert any("is unexpected" in gap for gap in answer["error"]["gaps"])


def test_the_published_cells_are_exactly_what_the_manifest_expects(calibrate):
    if not SHARED.is_file():
        pytest.skip("the published cells do not lie beside this checkout")
    manifest = ["--manifest", ROOT / "harness" / "sets" / "manifest.json"]
    sets = [word for name in ("main", "hetero", "ellavox", "tp2", "cp2", "single") for word in ("--cell-set", name)]
    assert calibrate("fit", "--cells", SHARED, *manifest, *sets)[0] == 0
    code, answer, _ = calibrate("fit", "--cells", SHARED, *manifest, "--cell-set", "smoke")
    assert code == 4
    assert any("cal-grpo-tiny" in gap and "expects it" in gap for gap in answer["error"]["gaps"])


def test_check_says_what_is_wrong_and_exits_1(calibrate, tmp_path):
    whole = (GOLDEN / "certificate.json").read_bytes()
    (tmp_path / "c.json").write_bytes(whole.replace(b'"verdict":"certified"', b'"verdict":"certifieD"'))
    assert calibrate("check", "c.json")[0] == 1
    (tmp_path / "c.json").write_bytes(whole)
    assert calibrate("check", "c.json")[0] == 0
    code, answer, _ = calibrate("check", "c.json", "--expect-sha256", "0" * 64)
    assert code == 1
    assert "not the expected" in answer["problems"][0]
    assert calibrate("check", "nowhere.json")[0] == 2
