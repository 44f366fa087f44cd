-- Views in PostgreSQL: derived from the log, in the same database.
-- Two processes that start together must not create the same table at once.
SELECT pg_advisory_xact_lock(hashtext('steersman views'));

CREATE TABLE IF NOT EXISTS view_heads (
    view text NOT NULL,
    generation bigint NOT NULL,
    version bigint NOT NULL,
    position bigint NOT NULL,
    active boolean NOT NULL,
    PRIMARY KEY (view, generation)
);
CREATE UNIQUE INDEX IF NOT EXISTS view_heads_active ON view_heads (view) WHERE active;

CREATE TABLE IF NOT EXISTS view_rows (
    view text NOT NULL,
    generation bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    "grouping" text NOT NULL,
    ordering bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (view, generation, key)
);
CREATE INDEX IF NOT EXISTS view_rows_group ON view_rows (view, generation, "grouping", ordering);
