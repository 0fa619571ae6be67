"""Views that users keep: addresses of the list of jobs and of compared runs, by name."""

from urllib.parse import parse_qs, urlsplit

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.db.models.saved_views import SavedView
from core.errors import SpecInvalid
from core.security.users import identity_of

COLUMNS = ""  # name of the view with the columns that the list has unless its address names others
_PAGES = frozenset({"/ui/jobs", "/ui/runs"})
_MOST_VIEWS = 100
_MOST_CHARACTERS = 100
_LONGEST_ADDRESS = 5000


def of_user(session: Session, key_id: str) -> dict[str, str]:
    """Return the addresses of a user's views by name."""
    query = select(SavedView.name, SavedView.address).where(SavedView.owner == identity_of(session, key_id))
    return {name: address for name, address in session.execute(query.order_by(SavedView.name))}  # noqa: C416 - dict() would ask a result for its keys


def columns(views: dict[str, str]) -> tuple[str, ...]:
    return tuple(parse_qs(urlsplit(views.get(COLUMNS, "")).query).get("cols", ()))


def save(session: Session, key_id: str, name: str, address: str) -> None:
    """Keep an address under a name, in place of what the name stood for."""
    if len(name) > _MOST_CHARACTERS or not name.isprintable():
        raise SpecInvalid(
            f"A view's name has at most {_MOST_CHARACTERS} printable characters. Shorten it.", field="name"
        )
    parts = urlsplit(address)
    if len(address) > _LONGEST_ADDRESS or parts.scheme or parts.netloc or parts.path not in _PAGES:
        raise SpecInvalid(
            f"A view must be an address of /ui/jobs or /ui/runs with at most {_LONGEST_ADDRESS:,} characters. "
            "Save it from one of these pages.",
            field="address",
        )
    owner = identity_of(session, key_id)
    held = session.scalar(select(func.count()).where(SavedView.owner == owner)) or 0
    if held >= _MOST_VIEWS and session.get(SavedView, (owner, name)) is None:
        raise SpecInvalid(f"You have {held} views, which is the limit. Delete one first.", field="name")
    session.merge(SavedView(owner=owner, name=name, address=address))
    session.flush()


def remove(session: Session, key_id: str, name: str) -> None:
    session.execute(delete(SavedView).where(SavedView.owner == identity_of(session, key_id), SavedView.name == name))
