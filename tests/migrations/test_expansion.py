"""The rule of migrations: nothing breaks a release that is still served. Checked on the schema of real databases."""

from pathlib import Path

import pytest
from alembic import command
from support.releases import (
    COMPATIBLE_STEP,
    HEAD_REVISION,
    NEXT_REVISION,
    ReleaseStep,
    act_as_release,
    describe_schema,
    find_breaking_changes,
    make_later_release,
)

from core.db import migrations
from core.db.database import Database


def retired_until(revision):
    """Return the tables and columns that the release of `revision` no longer uses."""
    names = set()
    for step in migrations.list_migrations():
        names |= set(getattr(step.module, "retires", ()))
        if step.revision == revision:
            break
    return names


def violations(database):
    """Apply the remaining steps one by one, and return what breaks the rule, by revision."""
    found = {}
    before = describe_schema(database)
    for step in migrations.list_migrations()[1:]:
        migrations.upgrade(database, step.revision)
        after = describe_schema(database)
        found[step.revision] = find_breaking_changes(
            before, after, removable=retired_until(step.module.serves), retired=retired_until(step.revision)
        )
        before = after
    return found


def test_every_step_only_adds_what_may_stay_empty(empty_database, tmp_path):
    with act_as_release(make_later_release(tmp_path / "later", COMPATIBLE_STEP)):
        steps = migrations.list_migrations()
        migrations.upgrade(empty_database, steps[0].revision)
        assert violations(empty_database) == {step.revision: [] for step in steps[1:]}
    assert steps[-1].revision == NEXT_REVISION


def test_every_step_serves_the_release_before_it():
    known = [step.revision for step in migrations.list_migrations()]
    for before, step in zip([known[0], *known], migrations.list_migrations(), strict=False):
        assert known.index(step.module.serves) <= known.index(before), f"{step.revision} shuts out {before}"


def test_what_is_retired_need_not_be_filled(empty_database, tmp_path):
    """A column that nobody fills any more has to take that."""
    migrations.upgrade(empty_database)
    tables = describe_schema(empty_database)
    for name in migrations.retired():
        table, _, column = name.partition(".")
        if table in tables and column in tables[table]["columns"]:
            _type, nullable, default = tables[table]["columns"][column]
            assert nullable or default, f"{name} is retired, and an insert without it fails"
    with act_as_release(make_later_release(tmp_path / "later", ReleaseStep("pass", retires=("jobs.run_after",)))):
        assert migrations.retired() == {"jobs.run_after"}


@pytest.mark.parametrize("retires", [(), ("jobs.old", "relics")])
def test_a_new_migration_leaves_what_was_retired_alone(tmp_path, retires):
    """As `make migration` writes it: without the word, it would take away what served releases may still read."""
    body = (
        'op.add_column("jobs", sa.Column("old", sa.Integer()))\nop.create_table("relics", sa.Column("n", sa.Integer()))'
    )
    database = Database(f"sqlite:///{tmp_path / 'gradient.db'}")
    with act_as_release(make_later_release(tmp_path / "later", ReleaseStep(body, retires=retires))):
        migrations.upgrade(database)
        with database.engine.begin() as connection:
            command.revision(migrations.configuration(connection), message="nothing new", autogenerate=True)
        written = migrations.list_migrations()[-1]
    database.close()
    text = Path(written.path).read_text()
    assert ("drop_column('old')" in text, "drop_table('relics')" in text) == (not retires, not retires)
    assert (written.module.down_revision, written.module.serves) == (NEXT_REVISION, NEXT_REVISION)


HOSTILE = {
    'batch.drop_column("phase_detail")': ["jobs.phase_detail is gone"],
    'batch.alter_column("run_after", new_column_name="not_before")': ["jobs.run_after is gone"],
    'batch.add_column(sa.Column("pool", sa.String(64), nullable=False))': [
        "jobs.pool is required and has no default",
    ],
    'batch.alter_column("attempt", existing_type=sa.Integer(), type_=sa.BigInteger())': [
        "jobs.attempt was INTEGER and is BIGINT",
    ],
    'batch.alter_column("run_after", existing_type=sa.DateTime(timezone=True), nullable=False)': [
        "jobs.run_after is required now",
    ],
    'batch.alter_column("priority", existing_type=sa.Integer(), nullable=True)': ["jobs.priority may be empty now"],
    'batch.alter_column("gpus", existing_type=sa.Integer(), server_default=None)': [
        "jobs.gpus has no default any more",
    ],
    'batch.create_unique_constraint("uq_jobs_name", ["name"])': ["jobs restricts rows by ('unique', ('name',))"],
    'batch.create_check_constraint("priority", "priority <= 100")': ["jobs restricts rows by ('check', "],
    'batch.drop_index("uq_jobs_idempotency")': [
        "jobs has no ('unique', ('submitted_by', 'idempotency_key')) any more",
    ],
}


@pytest.mark.parametrize("operation", HOSTILE)
def test_the_rule_sees_what_breaks_it(empty_database, tmp_path, operation):
    body = f'with op.batch_alter_table("jobs") as batch:\n    {operation}'
    migrations.upgrade(empty_database, migrations.list_migrations()[0].revision)
    with act_as_release(make_later_release(tmp_path / "later", ReleaseStep(body))):
        found = violations(empty_database)[NEXT_REVISION]
    assert len(found) == len(HOSTILE[operation])
    assert all(line.startswith(expected) for line, expected in zip(found, HOSTILE[operation], strict=True))


@pytest.mark.parametrize(("serves", "expected"), [(HEAD_REVISION, ["jobs.max_attempts is gone"]), (NEXT_REVISION, [])])
def test_what_was_retired_a_release_earlier_may_go(empty_database, tmp_path, serves, expected):
    """First nobody uses it and it may stay empty; it goes when no release is served any more that did."""
    retire = """
    with op.batch_alter_table("jobs") as batch:
        batch.alter_column("max_attempts", existing_type=sa.Integer(), nullable=True)
    """
    drop = """
    with op.batch_alter_table("jobs") as batch:
        batch.drop_column("max_attempts")
    """
    later = make_later_release(
        tmp_path / "later", ReleaseStep(retire, retires=("jobs.max_attempts",)), ReleaseStep(drop, serves=serves)
    )
    migrations.upgrade(empty_database, migrations.list_migrations()[0].revision)
    with act_as_release(later):
        found = violations(empty_database)
    assert list(found.values())[-2:] == [[], expected]
