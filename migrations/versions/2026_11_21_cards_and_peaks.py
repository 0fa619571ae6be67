"""GPUs and peak usage of attempts, and GPUs of a host that are in use outside this service."""

# Runs while the previous release is still serving: every new column may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
serves = "0001"


def _columns() -> dict[str, list[sa.Column]]:
    return {
        "attempts": [
            sa.Column("cards", sa.JSON(none_as_null=True)),
            sa.Column("sampled_seconds", sa.Double()),
            sa.Column("peak_memory_bytes", sa.BigInteger()),
            sa.Column("peak_cpu_percent", sa.Double()),
            sa.Column("mean_cpu_percent", sa.Double()),
            sa.Column("peak_gpu_memory_bytes", sa.BigInteger()),
            sa.Column("peak_gpu_percent", sa.Double()),
            sa.Column("mean_gpu_percent", sa.Double()),
        ],
        "workers": [sa.Column("taken_cards", sa.JSON(none_as_null=True))],
    }


def upgrade() -> None:
    """Apply this migration."""
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)


def downgrade() -> None:
    """Revert this migration."""
    for table, columns in _columns().items():
        for column in columns:
            op.drop_column(table, column.name)
