from hypothesis import given
from hypothesis import strategies as st

from orchestrate.gate.github_files import MAX_SUMMARY_BYTES, append_outputs, append_summary, bounded_annotations


def read_outputs(text):
    """As the runner reads the file: name<<delimiter, lines, delimiter."""
    found, lines = {}, iter(text.split("\n"))
    for line in lines:
        if not line:
            continue
        name, _, delimiter = line.partition("<<")
        value = []
        for inner in lines:
            if inner == delimiter:
                break
            value.append(inner)
        found[name] = "\n".join(value)
    return found


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\r")))
def test_no_value_can_set_another_output(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("o") / "output"
    append_outputs(path, {"a": value, "b": "x"})
    assert read_outputs(path.read_text()) == {"a": value, "b": "x"}


def test_a_summary_stays_within_what_github_takes(tmp_path):
    path = tmp_path / "summary.md"
    for _ in range(3):
        append_summary(path, "é" * 400_000)
        assert path.stat().st_size <= MAX_SUMMARY_BYTES
    assert "was cut" in path.read_text()


def test_at_most_ten_annotations_of_a_kind_the_first_ones_stay():
    rows = [("error", f"t{index}", "m") for index in range(30)] + [("warning", "w", "m")]
    lines = bounded_annotations(rows)
    assert sum(line.startswith("::error") for line in lines) == 10
    assert "title=t0" in lines[0]
    assert "21 more" in lines[9]
    assert lines[-1].startswith("::warning")


def test_an_annotation_is_one_line_whatever_is_in_it():
    (line,) = bounded_annotations([("error", "a,b:c\n::warning::x", "1\n2%0A3\r::error::4")])
    assert "\n" not in line
    assert "\r" not in line
