"""Rule-based sentence splitting: one pass of one regular expression, and a few cheap checks of its matches.

Written for English and Korean; other scripts are split at their own full stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

OPENERS = "\"'“‘«‹([{「『【〈《（—–-"
CLOSERS = "\"'”’»›)\\]}」』】〉》）"
LOWER = "a-zß-öø-ÿα-ώа-џ"
WIDE = "。！？｡"  # these end a sentence without a following space
MARKS = f".!?…{WIDE}"

# A match ends where a sentence may end; it has group 1 if further checks are needed. It starts with one character set,
# because the engine skips to such a set quickly, and a run of marks only matches from its first one, so that time is
# linear.
CANDIDATE = re.compile(
    rf"""
    [\n{MARKS}।॥؟۔։።။។] (?<![{MARKS}][{MARKS}])
    (?:
      (?<![\n{WIDE}]) (?<!\([!?])                              # not "(?)"
      [.!?…]* [{CLOSERS}]* (?:\[\w{{1,4}}\])*                  # closing quotes and brackets, a footnote "[4]"
      (?! (?<=["'”’]) [ ] (?:하고|하며|하는|하자|라고|라며|라는|이라|고[ ]) )  # a Korean quotation continues
      (?: (?=[ ][A-Z]) (?: (?<=[a-z]{{4}}\.) (?<!ssrs\.) | (?<=[0-9]{{4}}\.) | (?<=["”)]\.) )
        | (?=[ ]) (?<=[가-힣][다요까죠음]\.)
        | (?= [ \t\u00a0\u3000]+ (?:[{OPENERS}][ ]?)* [^\s{LOWER}.,;:!?…&~{OPENERS}] ) () )
    | (?<=\n)
    | (?<=[{WIDE}]) [{WIDE}…]* [{CLOSERS}]* (?![{WIDE}…{CLOSERS}]) (?! (?<![{WIDE}…]) [ぁ-ゖ] )
    | (?<=[a-z]{{3}}\.) (?=[A-Z][a-z]{{1,15}}[ ])                  # typed without the space
    | (?<=[다요까죠][.!?]) (?=[가-힣]) (?!라[고는며])
    )
    """,
    re.VERBOSE,
)


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


ALWAYS_CONTINUES = _words(
    "Mr Mrs Ms Dr Prof Gen Col Capt Lt Sgt Maj Cpl Pvt Adm Cmdr Rev Hon Gov Sen Rep Pres Messrs Mme Mlle Mt Ft Fr "
    "Asst vs e.g i.e E.g I.e cf Cf viz lit"
)
CONTINUES_BEFORE_NUMBER = _words("No Nos no nos Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec")
CONTINUES_UNLESS_STARTER = _words(
    "St Jr Sr Inc Ltd Co Corp Bros al Ave Blvd Rd Apt Fig Figs fig figs Eq Eqs Vol vol Vols vols Op op cit Ch ch Sec "
    "sec Art art pp ca Ca fl approx Approx ed eds Ed Eds Est dept Dept Univ"
)
STARTERS = _words(
    "The This That These Those There He She It We They You I His Her Its Their Our My Your A An In On At For From By "
    "With After Before During When While As If Although Though Because Since But And Or So Yet Then Thus However Also "
    "Another Both Each Every Many Most Some Several One No Not Now Here What Where Who Why How Such Other Others Under "
    "Over Until To Please Nobody Neither"
)
AFTER_AM_PM = _words(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday EST EDT CST CDT MST MDT PST PDT GMT UTC CET BST KST JST "
    "Eastern Central Pacific"
)
HEADINGS = _words("Chapter Article Section Part Table Figure Act Scene Book Step Rule Theorem Lemma Example")
ACRONYM = re.compile(r"(?:\w{1,2}\.)+\w{1,2}")
ENUMERATOR = re.compile(r"제?\d{1,3}[조장절항호]?|[IVX]{1,5}|[가나다라마바사차카타파]")
NEXT_WORD = re.compile(rf"\s+(?:[{OPENERS}]\s?)*(\w+)((?:\.(?!\d))?)")
NOT_SPACE = re.compile(r"\S")
LONGEST_ABBREVIATION = 8


def split_sentences(text: str, *, max_characters: int = 4096) -> list[str]:
    """The sentences of a text, stripped, in order; no character except white space is lost."""
    sentences: list[str] = []
    start = 0
    for match in CANDIDATE.finditer(text):
        if not match.lastindex or not _continues(text, start, match.start(), match.end()):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    sentences = [sentence for sentence in (*sentences, text[start:].strip()) if sentence]
    if max(map(len, sentences), default=0) > max_characters:
        return [piece for sentence in sentences for _, piece in split_long_text(sentence, max_characters)]
    return sentences


def split_long_text(text: str, max_characters: int) -> Iterator[tuple[int, str]]:
    """(offset, piece) of at most `max_characters`, cut at a line end, sentence end or space, or anywhere."""
    match = NOT_SPACE.search(text)
    while match is not None:
        start = match.start()
        end = len(text) if len(text) - start <= max_characters else find_cut(text, start, start + max_characters)
        yield start, text[start:end].rstrip()
        match = NOT_SPACE.search(text, end)


def find_cut(text: str, start: int, end: int) -> int:
    """The best position to cut text[start:end]; line and sentence ends count only in its second half."""
    middle = (start + end) // 2
    if (position := text.rfind("\n", middle, end)) >= 0:
        return position + 1
    marks = (". ", "? ", "! ", "。")
    ends = [position + len(mark) for mark in marks if (position := text.rfind(mark, middle, end)) >= 0]
    if ends:
        return max(ends)
    return text.rfind(" ", start, end) + 1 or end


def _continues(text: str, start: int, mark: int, end: int) -> bool:
    """Whether the sentence from `start` continues after the mark at `mark` and its closing quotes up to `end`."""
    if text[mark] not in ".…":
        return False
    near = max(start, mark - 2 * LONGEST_ABBREVIATION)  # a bound, because the sentence may be long
    begin = max(text.rfind(" ", near, mark) + 1, near)
    word = text[begin:mark].lstrip(OPENERS).rpartition("(")[2]
    if text[mark] == "…" or text[mark + 1] in ".…" or text[begin - 2 : mark] == ". ":
        return _continues_after_ellipsis(text, start, mark, end)
    if not word or len(word) > LONGEST_ABBREVIATION:
        return False
    if word[-1] >= "가" or word[-1].isdigit() or (len(word) > 1 and word[-1] in "IVX"):
        return _continues_after_number(text, start, begin, word, end)
    if word in ALWAYS_CONTINUES:
        return True
    if len(word) == 1 or word in CONTINUES_UNLESS_STARTER or word in CONTINUES_BEFORE_NUMBER or ACRONYM.fullmatch(word):
        return _continues_after_abbreviation(word, text, end)
    return False


def _continues_after_abbreviation(word: str, text: str, end: int) -> bool:
    """Whether the word after an abbreviation, an initial or an acronym belongs to the same sentence."""
    match = NEXT_WORD.match(text, end)
    if match is None:
        return False
    follower, dot = match.groups()
    if word in CONTINUES_BEFORE_NUMBER:
        return follower[0].isdigit()
    if word in ("a.m", "p.m"):
        return follower in AFTER_AM_PM
    if text[end - 1] != "." and follower[0].isupper():  # a closing quote or bracket after it: "… in the U.N."
        return False
    return follower not in STARTERS or dot == "."  # a starter with a dot is an initial: "J. A. Finch"


def _continues_after_number(text: str, start: int, begin: int, word: str, end: int) -> bool:
    """Whether "12.", "IV." or "가." is a list number or part of a date such as "2023. 4. 5."."""
    before = text[start:begin].strip() if begin - start < 2 * LONGEST_ABBREVIATION else "…"
    if not before and ENUMERATOR.fullmatch(word):
        return word[-1].isdigit() or len(word) > 1 or start == 0 or text[start - 1] == "\n"
    if not word.isdigit():
        return False
    if before in HEADINGS:
        return True
    match = NEXT_WORD.match(text, end)
    if match is not None and match[2] == "." and match[1].isdigit() and len(match[1]) < 3:
        return True
    return begin - 3 >= start and text[begin - 2] == "." and text[begin - 3].isdigit()


def _continues_after_ellipsis(text: str, start: int, mark: int, end: int) -> bool:
    """Whether dots are within a sentence: at its start, before "I", and in Korean unless they follow a verb."""
    before = text[max(start, mark - 2 * LONGEST_ABBREVIATION) : mark].rstrip(" .…")
    match = NEXT_WORD.match(text, end)
    if match is None or not before:
        return not before
    if match[1][0] >= "가":
        return before[-1] not in "다요까죠"
    return match[1] == "I"
