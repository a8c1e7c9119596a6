"""The code digest follows names: what a stage uses is in it, and nothing else."""

import textwrap

import pytest

from widthlab import code_digest as module

SOURCES = {
    "__init__": '"""Package."""',
    "top": '''
        """Module."""
        from widthlab.low import helper as h
        from widthlab import other
        from widthlab.types import Shape

        TABLE = {"a": h}

        def stage(shape: Shape):
            """What it does."""
            # a comment
            return TABLE["a"](shape) + other.used()

        def figures():
            return other.unused()
        ''',
    "low": """
        CONSTANT = 3

        def helper(x):
            return inner(x)

        def inner(x):
            return x.area() * CONSTANT

        def apart():
            return 0
        """,
    "other": """
        def used():
            return 1

        def unused():
            return 2
        """,
    "types": """
        class Base:
            def area(self):
                return 1

        class Shape(Base):
            pass
        """,
    "whole": """
        from widthlab import other

        def stage(visit):
            return visit(other)
        """,
    "loose": """
        def stage():
            return 1

        print("imported")
        """,
}


def forget():
    """Empty the caches of the digest."""
    for function in (
        module.code_digest,
        module.closure,
        module._uses,
        module._source,
        module._parse,
        module._candidate,
    ):
        function.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package to edit, with the caches of the digest emptied before every look."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    def look(root="widthlab.top:stage"):
        forget()
        return module.code_digest(root)

    for name, text in SOURCES.items():
        write(name, text)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    yield write, look
    monkeypatch.undo()
    forget()


def test_the_closure_holds_what_is_used(package):
    _, look = package
    look()
    assert module.closure("widthlab.top:stage") == {
        ("widthlab.top", "stage"),
        ("widthlab.top", "TABLE"),
        ("widthlab.low", "helper"),
        ("widthlab.low", "inner"),
        ("widthlab.low", "CONSTANT"),
        ("widthlab.other", "used"),
        ("widthlab.types", "Shape"),
        ("widthlab.types", "Base"),
    }


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("top", "# a comment", "# another", False),
        ("top", "What it does.", "What it does not.", False),
        ("top", "def stage(shape: Shape):", "def stage(\n    shape: Shape,\n):", False),
        ("top", "other.unused()", "other.unused() + 1", False),
        ("low", "return 0", "return 1", False),
        ("other", "return 2", "return 3", False),
        ("low", "CONSTANT = 3", "CONSTANT = 4", True),
        ("other", "return 1", "return 2", True),
        ("types", "return 1", "return 2", True),
        ("top", "+ other", "- other", True),
    ],
)
def test_only_changes_of_used_code_change_the_digest(package, name, old, new, changes):
    write, look = package
    before = look()
    text = textwrap.dedent(SOURCES[name])
    assert text.count(old) == 1
    write(name, text.replace(old, new))
    assert (look() != before) == changes


def test_a_module_handed_on_as_a_value_counts_whole(package):
    write, look = package
    before = look("widthlab.whole:stage")
    write("other", SOURCES["other"].replace("return 2", "return 3"))
    assert look("widthlab.whole:stage") != before


def test_loose_statements_of_a_module_count(package):
    write, look = package
    before = look("widthlab.loose:stage")
    write("loose", SOURCES["loose"].replace("imported", "exported"))
    assert look("widthlab.loose:stage") != before


def test_an_unknown_root_is_an_error(package):
    _, look = package
    with pytest.raises(LookupError, match="nothing"):
        look("widthlab.top:nothing")


def test_a_plain_import_is_refused_since_it_could_not_be_followed(package):
    write, look = package
    write("top", "import widthlab.low\n\ndef stage():\n    return widthlab.low.helper\n")
    with pytest.raises(LookupError, match="from … import"):
        look()
