-- Views in SQLite: derived from the log, so that a lost file costs one rebuild.
BEGIN IMMEDIATE;

CREATE TABLE IF NOT EXISTS view_heads (
    view TEXT NOT NULL,
    generation INTEGER NOT NULL,
    version INTEGER NOT NULL,
    position INTEGER NOT NULL,
    active INTEGER NOT NULL,
    PRIMARY KEY (view, generation)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS view_heads_active ON view_heads (view) WHERE active;

CREATE TABLE IF NOT EXISTS view_rows (
    view TEXT NOT NULL,
    generation INTEGER NOT NULL,
    key TEXT NOT NULL,
    grouping TEXT NOT NULL,
    ordering INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (view, generation, key)
);
CREATE INDEX IF NOT EXISTS view_rows_group ON view_rows (view, generation, grouping, ordering);

-- One row: how often something was forgotten, and up to where none of the files has a copy of it any more. A file that an
-- earlier release made may have some.
CREATE TABLE IF NOT EXISTS view_forgotten (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    forgotten INTEGER NOT NULL,
    gone INTEGER NOT NULL
);
INSERT INTO view_forgotten (id, forgotten, gone) VALUES (1, 1, 0) ON CONFLICT DO NOTHING;

COMMIT;
