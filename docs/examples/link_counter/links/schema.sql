CREATE TABLE IF NOT EXISTS link (
  code TEXT PRIMARY KEY,
  url TEXT NOT NULL,
  created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- A click has an id of its own: the message about it may come twice, and counts once.
CREATE TABLE IF NOT EXISTS click (
  id TEXT PRIMARY KEY,
  code TEXT NOT NULL REFERENCES link (code)
);

CREATE INDEX IF NOT EXISTS click_code ON click (code);
