"""${message}."""

# Everything that a migration locks stays locked until all of it is done (CONTRIBUTING.md, "A migration").

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Change the schema."""
    ${upgrades if upgrades else "pass"}
