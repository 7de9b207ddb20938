"""What a group prints of the secrets that it was given."""

from harness.concealing import conceal, secret_values


def test_values_of_secret_names_are_concealed_in_every_form_and_the_rest_is_untouched(tmp_path):
    env = {"API_KEY": 'a"b<c>\\0123456789', "HF_TOKEN": "hunter2hunter2", "PLAIN": "hunter2hunter2x"}
    values = secret_values(env)
    (tmp_path / "a").mkdir()
    log = tmp_path / "a/output.log"
    log.write_bytes(
        b'\xff raw a"b<c>\\0123456789 json a\\"b<c>\\\\0123456789 xml a"b&lt;c&gt;\\0123456789\nhunter2hunter2'
    )
    other = tmp_path / "same"
    other.write_bytes(b"nothing here\n")
    before = other.stat()
    assert conceal(tmp_path, values) == ("API_KEY", "HF_TOKEN")
    assert log.read_bytes() == b"\xff raw <API_KEY> json <API_KEY> xml <API_KEY>\n<HF_TOKEN>"
    assert other.stat().st_ino == before.st_ino


def test_paths_addresses_and_words_are_no_secrets():
    env = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token0",
        "SECRET_BACKEND": "kubernetes",
        "ACTIONS_ID_TOKEN_REQUEST_URL": "https://pipelines.example.org/0123456789",
        "TOKENIZERS_PARALLELISM": "false",
        "EMPTY_TOKEN": "",
    }
    assert secret_values(env) == {}


def test_a_link_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("hunter2hunter2")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    assert conceal(folder, {b"hunter2hunter2": "X"}) == ()
    assert outside.read_text() == "hunter2hunter2"
