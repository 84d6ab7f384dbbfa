"""The tables of gnsqsync's outbox and inbox."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "nsq1"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
BODY = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
UTF8 = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}


def key(length: int) -> sa.String:
    """Make a type that compares bytes; MariaDB otherwise takes "A" for "a"."""
    by_bytes = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin")
    return sa.String(length).with_variant(by_bytes, "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "nsq_outbox",
        sa.Column("id", ID, primary_key=True),
        sa.Column("topic", sa.String(64), nullable=False),
        sa.Column("body", BODY, nullable=False),
        sa.Column("headers", sa.JSON),
        sa.Column("key", key(200), nullable=False),
        sa.Column("scheduled", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("retry_at", MOMENT, nullable=False),
        sa.Column("failed_at", MOMENT),
        sa.Column("last_error", sa.Text, nullable=False),
        sqlite_autoincrement=True,
        **UTF8,
    )
    op.create_index("ix_nsq_outbox_key", "nsq_outbox", ["key"])
    op.create_index("nsq_outbox_due", "nsq_outbox", ["failed_at", "retry_at", "id"])
    op.create_table(
        "nsq_inbox",
        sa.Column("id", ID, primary_key=True),
        sa.Column("consumer", key(129), nullable=False),
        sa.Column("key", key(200), nullable=False),
        sa.Column("handled_at", MOMENT, nullable=False),
        sa.UniqueConstraint("consumer", "key", name="nsq_inbox_once"),
        sqlite_autoincrement=True,
        **UTF8,
    )
    op.create_index("ix_nsq_inbox_handled_at", "nsq_inbox", ["handled_at"])


def downgrade() -> None:
    op.drop_table("nsq_inbox")
    op.drop_table("nsq_outbox")
