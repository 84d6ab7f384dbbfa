"""The tables of gnsqsync's outbox and inbox."""

import sqlalchemy as sa
from alembic import op

revision = "nsq1"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "nsq_outbox",
        sa.Column("id", ID, primary_key=True),
        sa.Column("topic", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("headers", sa.JSON),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("scheduled", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("retry_at", MOMENT, nullable=False),
        sa.Column("failed_at", MOMENT),
        sa.Column("last_error", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_nsq_outbox_key", "nsq_outbox", ["key"])
    op.create_index("nsq_outbox_due", "nsq_outbox", ["failed_at", "retry_at", "id"])
    op.create_table(
        "nsq_inbox",
        sa.Column("id", ID, primary_key=True),
        sa.Column("consumer", sa.String(129), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("handled_at", MOMENT, nullable=False),
        sa.UniqueConstraint("consumer", "key", name="nsq_inbox_once"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_nsq_inbox_handled_at", "nsq_inbox", ["handled_at"])


def downgrade() -> None:
    op.drop_table("nsq_inbox")
    op.drop_table("nsq_outbox")
