import hashlib
import os
import subprocess

import pytest

from harness.source_files import Watch, changed_files, pin_files, unpack
from orchestrate.errors import UsageError
from orchestrate.lifecycle.source_archive import archive_commit


class Repository:
    def __init__(self, path, *options):
        self.path = path
        self.files = []
        path.mkdir()
        self.git("init", "-q", "-b", "main", *options)
        self.git("config", "user.email", "a@example.org")
        self.git("config", "user.name", "a")

    def git(self, *arguments):
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(["git", *arguments], cwd=self.path, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, **files):
        for name, text in files.items():
            (self.path / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (self.path / name.replace("__", "/")).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def loose(self, name):
        """The file of an object that is in no pack."""
        found = self.git("rev-parse", name)
        return self.path / ".git/objects" / found[:2] / found[2:]

    def archive(self, commit="HEAD", name="a.tar", folder=".", **options):
        self.files.append((self.path.parent / name).open("wb"))  # open for as long as the path is read
        return archive_commit(self.path / folder, commit, self.files[-1], os.environ, **options)


@pytest.fixture
def repository(tmp_path):
    found = Repository(tmp_path / "repository")
    yield found
    for file in found.files:
        file.close()


def test_the_commit_travels_and_nothing_of_the_working_tree(repository, tmp_path):
    repository.commit(a="1", d__b="2")
    (repository.path / "link").symlink_to("a")
    commit = repository.commit(c="3")
    (repository.path / "a").write_text("not committed")
    found = repository.archive()
    assert (found.commit, found.dirty, found.left_out) == (commit, True, ())
    unpack(found.path, found.sha256, tmp_path / "work")
    assert (tmp_path / "work/a").read_text() == "1"
    assert pin_files(tmp_path / "work") == found.files
    assert set(found.files) == {"a", "c", "d/b", "link"}


@pytest.mark.parametrize(
    ("target", "inside"),
    [("../a", True), ("b/../../a", False), ("./b", True), ("../../a", False), ("/etc/passwd", False), ("..", True)],
)
def test_a_link_is_refused_at_launch_exactly_where_no_node_would_take_it(repository, tmp_path, target, inside):
    repository.commit(a="1", d__b="2")
    (repository.path / "d/link").symlink_to(target)
    repository.commit(c="3")
    if inside:
        found = repository.archive()
        unpack(found.path, found.sha256, tmp_path / "work")
        assert pin_files(tmp_path / "work") == found.files
    else:
        with pytest.raises(UsageError, match=r"d/link.*leads out") as caught:
            repository.archive()
        assert "export-ignore" in caught.value.remedy


def test_the_same_commit_is_the_same_bytes(repository):
    repository.commit(a="1")
    assert repository.archive(name="1.tar").sha256 == repository.archive(name="2.tar").sha256


@pytest.mark.parametrize(
    ("attributes", "settings"),
    [
        ("a filter=x", {"filter.x.smudge": "sed s/1/9/"}),
        ("a export-ignore", {}),
        ("a export-subst", {}),
        ("* text eol=crlf", {}),
        ("", {"core.autocrlf": "true"}),
        ("", {"filter.lfs.smudge": "sed s/1/9/"}),
    ],
)
@pytest.mark.parametrize("place", ["clone", "machine"])
def test_what_travels_is_the_commit_whatever_git_does_to_files_here(
    repository, tmp_path, monkeypatch, attributes, settings, place
):
    commit = repository.commit(**{"a": "1\n$Format:%H$\n", "b": "1\n", ".gitattributes": "b filter=lfs\n"})
    plain = repository.archive(name="1.tar")
    if place == "clone":
        (repository.path / ".git/info/attributes").write_text(f"{attributes}\n")
    else:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        (tmp_path / "git").mkdir()
        (tmp_path / "git/attributes").write_text(f"{attributes}\n")
    for name, value in settings.items():
        repository.git("config", *([] if place == "clone" else ["--global"]), name, value)
    found = repository.archive(commit, name="2.tar")
    assert (found.sha256, found.files, found.left_out) == (plain.sha256, plain.files, ())


def test_a_commit_that_is_replaced_here_is_itself(repository):
    bad = repository.commit(a="bad")
    plain = repository.archive(name="1.tar")
    good = repository.commit(a="good")
    repository.git("replace", bad, good)
    found = repository.archive(bad, name="2.tar")
    assert (found.commit, found.tree, found.parents, found.files) == (bad, plain.tree, (), plain.files)


@pytest.mark.parametrize("options", [[], ["--object-format=sha256"]], ids=["sha1", "sha256"])
@pytest.mark.parametrize("what", ["HEAD:a", "HEAD:.gitattributes", "HEAD:d", "HEAD^{tree}", "HEAD"])
def test_an_object_that_is_not_what_its_id_says_is_refused(tmp_path, what, options):
    repository = Repository(tmp_path / "repository", *options)
    repository.commit(**{"a": "good", "d__b": "good too", ".gitattributes": "# good\n"})
    good = repository.loose(what)
    repository.commit(**{"a": "bad", "d__b": "bad too", ".gitattributes": ".gitattributes export-ignore\n"})
    bad = repository.loose(what)
    bad.unlink()
    bad.write_bytes(good.read_bytes())
    with pytest.raises(UsageError) as caught:
        repository.archive(repository.git("rev-parse", "HEAD"))
    if ":" in what:  # git itself refuses the others
        assert f"{bad.parent.name}{bad.name} ({what.partition(':')[2]!r})" in caught.value.cause
        assert "git fsck" in caught.value.remedy


def test_objects_of_every_kind_are_what_their_ids_say(repository, tmp_path):
    (repository.path / "link").symlink_to("a")
    (repository.path / "large").write_bytes(os.urandom(3 << 20))
    repository.commit(a="1", b="1", empty="", d__c="2")
    other = Repository(tmp_path / "other")
    other.commit(a="1")
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "module")
    repository.commit(a="2")
    repository.git("gc", "-q")
    assert repository.archive().left_out == ("module",)


@pytest.mark.parametrize("options", [[], ["--object-format=sha256"]], ids=["sha1", "sha256"])
def test_how_ids_are_shortened_in_a_file_is_up_to_no_clone(tmp_path, options):
    repository = Repository(tmp_path / "repository", *options)
    commit = repository.commit(**{"a": "$Format:%h$", ".gitattributes": "a export-subst\n"})
    assert repository.archive().files["a"] == hashlib.sha256(commit.encode()).hexdigest()


def test_the_parents_are_those_of_the_commit_in_a_shallow_clone_too(repository, tmp_path):
    first = repository.commit(a="1")
    second = repository.commit(a="2")
    repository.git("clone", "-q", "--depth=1", f"file://{repository.path}", str(tmp_path / "shallow"))
    found = repository.archive(folder=tmp_path / "shallow")
    assert (found.commit, found.parents, set(found.files)) == (second, (first,), {"a"})


def test_a_blob_that_was_never_fetched_is_said(repository, tmp_path):
    repository.commit(a="1")
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.git("clone", "-qn", "--filter=blob:none", f"file://{repository.path}", str(tmp_path / "b"))
    with pytest.raises(UsageError, match=r"git archive in .* says: ") as caught:
        repository.archive(folder=tmp_path / "b")
    assert "fetch" in caught.value.remedy


def test_ids_of_the_newer_kind_will_do(tmp_path):
    repository = Repository(tmp_path / "newer", "--object-format=sha256")
    first = repository.commit(a="1")
    commit = repository.commit(a="2")
    found = repository.archive()
    assert (found.commit, found.parents, len(found.tree)) == (commit, (first,), 64)


@pytest.mark.parametrize("folder", ["d", ".git", "d/../.git/refs"])
def test_the_whole_commit_travels_wherever_one_stands_in_it(repository, folder):
    repository.commit(a="1", d__b="2")
    found = repository.archive(folder=folder)
    assert (set(found.files), found.left_out) == ({"a", "d/b"}, ())


def test_what_git_leaves_out_is_said(repository):
    repository.commit(**{"a": "1", "secret": "2", ".gitattributes": "secret export-ignore\n"})
    assert repository.archive().left_out == ("secret",)


def test_a_merge_is_of_exactly_its_head_and_base(repository):
    base = repository.commit(a="1")
    repository.git("checkout", "-q", "-b", "change")
    head = repository.commit(b="2")
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "m", "change")
    found = repository.archive(head=head, base=base)
    assert (found.head, found.base, found.parents) == (head, base, (base, head))
    assert repository.archive(head, head=head).head == head
    other = repository.commit(c="3")
    for commit, named in [("HEAD~1", (base, head)), (other, (head, base)), ("HEAD~1", (head, None))]:
        with pytest.raises(UsageError, match="is not the head") as caught:
            repository.archive(commit, head=named[0], base=named[1])
        assert "None" not in caught.value.cause


@pytest.mark.parametrize("name", ["", "--output=x", "no-such-branch", "HEAD:a"])
def test_what_is_no_commit_is_refused(repository, name):
    repository.commit(a="1")
    with pytest.raises(UsageError, match="is no commit"):
        repository.archive(name)


def test_what_is_no_repository_is_refused(tmp_path):
    with pytest.raises(UsageError, match="says"), (tmp_path / "a.tar").open("wb") as tar:
        archive_commit(tmp_path, "HEAD", tar, os.environ)


def test_a_repository_without_a_working_tree_will_do(repository):
    commit = repository.commit(a="1")
    with (repository.path.parent / "a.tar").open("wb") as tar:
        found = archive_commit(repository.path / ".git", "HEAD", tar, os.environ)
    assert (found.commit, found.dirty) == (commit, False)


def test_names_that_are_not_utf_8_are_refused_and_such_links_travel(repository, tmp_path):
    (repository.path / "link").symlink_to(os.fsdecode(b"to-\xff"))
    repository.commit(a="1")
    found = repository.archive()
    unpack(found.path, found.sha256, tmp_path / "work")
    assert pin_files(tmp_path / "work") == found.files
    assert changed_files(tmp_path / "work", found.files) == ()
    watch = Watch(tmp_path / "work")
    (tmp_path / "work" / os.fsdecode(b"\xff")).touch()
    assert (watch.added(), watch.changed()) == (("\\xff",), ("\\xff",))
    (repository.path / "a").rename(repository.path / os.fsdecode(b"\xff"))
    repository.commit(b="1")
    with pytest.raises(UsageError, match="not UTF-8"):
        repository.archive()
