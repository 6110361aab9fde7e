"""The demo text is prose, fast to generate and deterministic."""

from itertools import islice
from pathlib import Path

import pytest

from bertsmith.data import sample_text
from bertsmith.data.sentences import split_sentences
from bertsmith.errors import DataError


@pytest.fixture(scope="module")
def english() -> list[str]:
    return [document.text for document in sample_text.python_documentation(limit=500_000)]


def test_english_prose_has_the_requested_size(english: list[str]) -> None:
    assert 500_000 <= sum(map(len, english)) < 700_000
    assert min(map(len, english)) >= 200
    assert english[:3] == [document.text for document in islice(sample_text.python_documentation(), 3)]


def test_english_prose_has_no_paragraph_twice_and_no_code(english: list[str]) -> None:
    paragraphs = [paragraph for text in english for paragraph in text.split("\n")]
    assert len(paragraphs) == len(set(paragraphs)) > 2000
    assert not any(noise in paragraph for paragraph in paragraphs for noise in (">>>", "::=", "``", ":param", "-----"))
    assert all(paragraph[-1] in ".!?\"')”’" for paragraph in paragraphs)


def test_modules_are_parsed_and_never_imported(tmp_path: Path) -> None:
    sentence = "This sentence about {} is long enough to be kept, as prose is kept."
    body = "\n\n".join(sentence.format(word) for word in ("rivers", "mountains", "valleys", "islands"))
    source = f'"""{body}"""\nraise SystemExit\nclass A:\n    """{sentence.format("classes")}"""\n'
    (tmp_path / "tests").mkdir()
    for name in ("b.py", "a.py", "tests/c.py", "test_d.py"):
        (tmp_path / name).write_text(source)
    (tmp_path / "broken.py").write_text('"""A docstring that is fine."""\ndef')
    result = list(sample_text._modules(tmp_path))
    assert [name for name, _ in result] == ["a", "b", "broken"]
    assert sample_text._docstrings(result[0][1]) == [body, sentence.format("classes")]
    assert sample_text._docstrings(result[2][1]) == []


def test_the_documentation_of_one_package_is_its_docstrings() -> None:
    documents = list(sample_text.package_documentation("numpy", limit=20_000))
    assert sum(len(document.text) for document in documents) >= 20_000
    assert all(document.source.startswith("numpy.") for document in documents)
    assert documents == list(islice(sample_text.package_documentation("numpy"), len(documents)))
    for name in ("nonexistent", "numpy.linalg"):
        with pytest.raises(DataError, match=f'^no installed package is called "{name}": name one such as torch$'):
            sample_text.package_documentation(name)


DOCSTRING = """Draw samples from a distribution.

    The samples are drawn with :class:`~random.Random`, see `the paper
    <https://example.org>`_ and **not** from ``os.urandom`` as one might think.

    Parameters
    ----------
    size : int
        How many samples there are.

    Args:
        low (float): The lower end of it, as a number.

    Returns:
        The samples in the order in which they were drawn, one after another.

    - The first item of a list is a sentence too.
    - not this one

    Pass x_1 and y_2 to f_3, then z_4 to g_5 or h_6.

    >>> sample(3)
    The output of an example is not prose, even where it looks so.

        code = sample(size)
    """


def test_docstrings_are_reduced_to_prose() -> None:
    assert list(sample_text.paragraphs(DOCSTRING)) == [
        "The samples are drawn with random.Random, see the paper and not from os.urandom as one might think.",
        "The samples in the order in which they were drawn, one after another.",
        "The first item of a list is a sentence too.",
    ]


def test_korean_prose_is_available() -> None:
    documents = list(sample_text.korean_samples())
    sentences = [sentence for document in documents for sentence in split_sentences(document.text)]
    assert len(documents) >= 10
    assert len(sentences) == len(set(sentences)) >= 60
    assert all(any("가" <= letter <= "힣" for letter in sentence) for sentence in sentences)
    assert all(sentence.rstrip("”")[-1] in ".?" for sentence in sentences)
