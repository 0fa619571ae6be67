"""${message}."""

# Runs while the release before is still serving: add first, remove one release later. On PostgreSQL the
# session's lock_timeout is short on purpose: a migration that waits for a lock makes everybody wait.

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """One release forward."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """And back."""
    ${downgrades if downgrades else "pass"}
