"""Keys of gnsqsync's tables that are compared by their bytes. Only on MariaDB is anything to do."""

from alembic import op

revision = "nsq2"
down_revision = "nsq1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name not in ("mysql", "mariadb"):
        return
    for table in ("nsq_outbox", "nsq_inbox"):
        op.execute(
            f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
        )
    op.execute("ALTER TABLE nsq_outbox MODIFY body LONGBLOB NOT NULL")


def downgrade() -> None:
    """Leave the tables: the version before works with them."""
