"""${message}."""

# Runs while the release before is still serving: it only adds (CONTRIBUTING.md, "A migration"). Everything that it
# locks stays locked until all of it is done; where it has to wait for a lock, all of it is tried again.

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}
serves = ${repr(down_revision)}  # the oldest revision whose code may still run on what this makes


def upgrade() -> None:
    """One release forward."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """And back."""
    ${downgrades if downgrades else "pass"}
