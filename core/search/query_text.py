"""The text of a query: `state:failed tag:sweep-1 acc>0.9 created<2d "free text"`, split into terms."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from core.errors import SpecInvalid

MAX_QUERY = 500  # most characters of a query
MAX_TERMS = 20
_PIECE = re.compile(r'(?:"[^"]*"|[^\s"])+|"')
_NEGATION = re.compile(r'-(?=[^\W\d]|")')
_FIELD = re.compile(r"([A-Za-z]+):(.*)\Z", re.DOTALL)
_COMPARISON = re.compile(r'([^<>=":\s]*?)(!?[<>=]+)(.*)\Z', re.DOTALL)
_OPERATORS = ("<", "<=", ">", ">=", "=")


@dataclass(frozen=True, slots=True)
class Term:
    text: str
    at: int  # place of its first character, from 1
    field: str  # the field before its operator; empty: free text
    operator: str  # `:`, `<`, `<=`, `>`, `>=` or `=`; empty: free text
    values: tuple[str, ...]  # the values after its operator, without quotes
    negated: bool = False  # True if a `-` precedes it


def query_error(term: Term, problem: str) -> SpecInvalid:
    return SpecInvalid(f"{problem} See {term.text[:80]!r}, at character {term.at} of the query.", field="q")


def parse_terms(text: str) -> list[Term]:
    terms = list(_terms(text))
    if len(terms) > MAX_TERMS:
        raise query_error(terms[MAX_TERMS], f"A query has at most {MAX_TERMS} terms.")
    return terms


def quote(value: str, *, always: bool = False) -> str:
    """Return a value as a query states it, in quotation marks if it needs them."""
    plain = value.replace('"', " ")
    return f'"{plain}"' if always or not plain or re.search(r"[\s,<>=:]|\A-", plain) else plain


def _terms(text: str) -> Iterator[Term]:
    for piece in _PIECE.finditer(text):
        term = _parse_term(piece[0], piece.start() + 1)
        if piece[0].count('"') % 2:
            raise query_error(term, 'A quotation mark is not closed; write "like this".')
        if term.operator not in {"", ":", *_OPERATORS}:
            operators = f"There are {', '.join(_OPERATORS)}; `-` before a term negates it."
            raise query_error(term, f"{term.operator!r} is not a comparison. {operators}")
        if term.operator and not term.field:
            raise query_error(term, f"A name is missing before {term.operator!r}.")
        if term.operator and not all(term.values):
            raise query_error(term, f"A value is missing after {term.field + term.operator!r}.")
        if any(term.values):
            yield term


def _parse_term(piece: str, at: int) -> Term:
    negated = _NEGATION.match(piece) is not None
    text = piece[1:] if negated else piece
    if field := _FIELD.match(text):
        return Term(piece, at, field[1].lower(), ":", tuple(_split(field[2])), negated)
    if compared := _COMPARISON.match(text):
        return Term(piece, at, compared[1], compared[2], (compared[3].replace('"', ""),), negated)
    return Term(piece, at, "", "", (text.replace('"', ""),), negated)


def _split(values: str) -> list[str]:
    """Split alternatives at the commas outside of quotation marks."""
    return [value.replace('"', "").strip() for value in re.findall(r'((?:"[^"]*"|[^,"])*),?', f"{values},")[:-1]]
