import argparse
import getpass
import json
import sys
from contextlib import closing

from core.db.database import Database
from core.formatting import iso_time
from core.jobs.costs import budgets
from core.security import users
from core.settings import Settings
from gradient_server.commands.keys import format_time, open_database


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    verbs = {"create": _create, "list": _list, "remove": _remove, "budget": _set_budget}
    with closing(open_database(settings)) as database:
        verbs[parsed.verb](parsed, database)
    return 0


def _create(parsed: argparse.Namespace, database: Database) -> None:
    # Never an argument: every user of this machine can read those.
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    with database.write() as session:
        user = users.create(session, parsed.email, password)
    print(f"{user.email} can now log in: paperspace login --email {user.email}")


def _list(parsed: argparse.Namespace, database: Database) -> None:
    with database.read() as session:
        rows = users.list_users(session)
    if parsed.json:
        print(json.dumps([{"email": row.email, "createdAt": iso_time(row.created_at)} for row in rows], indent=2))
        return
    if not rows:
        print("No users yet. `gradient-server users create EMAIL` creates one.")
        return
    print(f"{'CREATED':20} EMAIL")
    for row in rows:
        print(f"{format_time(row.created_at):20} {row.email}")


def _set_budget(parsed: argparse.Namespace, database: Database) -> None:
    with database.write() as session:
        user = users.get(session, parsed.email)
        budgets.put(session, "user", user.id, user.email, parsed.budgets)
    print(f"Budgets of {user.email}: {', '.join(parsed.budgets) or 'none'}.")


def _remove(parsed: argparse.Namespace, database: Database) -> None:
    with database.write() as session:
        revoked = users.remove(session, parsed.email)
    print(f"{parsed.email} can no longer log in; {len(revoked)} keys were revoked.")
