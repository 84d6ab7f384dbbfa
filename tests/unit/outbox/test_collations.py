"""Collations that compare bytes, and the refusal of all others."""

from __future__ import annotations

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.outbox.collations import check_exact, exact_collation, is_duplicate


def test_each_server_has_one_of_its_own() -> None:
    assert exact_collation([("utf8mb4_nopad_bin", "utf8mb4")]) == "utf8mb4_nopad_bin"
    assert exact_collation([("utf8mb4_0900_bin", "utf8mb4")]) == "utf8mb4_0900_bin"
    with pytest.raises(ConfigError, match=r"they need MariaDB 10\.2 or MySQL 8\.0\.17"):
        exact_collation([])


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_bin", "latin1_swedish_ci"])
def test_a_column_that_ignores_bytes_is_named(collation: str) -> None:
    columns = [("id", "bigint", None), ("note", "text", "x_ci"), ("key", "varchar(200)", collation)]
    with pytest.raises(ConfigError, match=f"column key of inbox has the collation {collation}.*go"):
        check_exact(columns, {"id", "key"}, "inbox", "go")
    check_exact(columns, {"id"}, "inbox", "go")


def test_only_a_duplicate_key_is_a_duplicate() -> None:
    assert is_duplicate(Exception(1062, "Duplicate entry"))
    assert not is_duplicate(Exception(1048, "cannot be null"))
    assert not is_duplicate(Exception())
