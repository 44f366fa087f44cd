-- The event log in SQLite. Times are text as in the envelope, so that their order is the order of time.

CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY,
    stream TEXT NOT NULL,
    version INTEGER NOT NULL,
    topic TEXT NOT NULL,
    state BLOB NOT NULL,
    run TEXT,
    run_sequence INTEGER,
    root TEXT,
    root_sequence INTEGER,
    is_output INTEGER NOT NULL DEFAULT 0,
    command_id TEXT,
    at TEXT,
    leaf_hash BLOB NOT NULL,
    mac BLOB
);
CREATE UNIQUE INDEX IF NOT EXISTS events_stream ON events (stream, version);
CREATE UNIQUE INDEX IF NOT EXISTS events_run ON events (run, run_sequence) WHERE run IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS events_root ON events (root, root_sequence) WHERE root IS NOT NULL;
-- What is decided of a tree: whoever folds it on must not walk all that its agents said since. (Step 2, too.)
CREATE INDEX IF NOT EXISTS events_decided ON events (root, root_sequence) WHERE root IS NOT NULL AND NOT is_output;
CREATE INDEX IF NOT EXISTS events_command ON events (command_id) WHERE command_id IS NOT NULL;

-- Step 3 takes these over, into a table in which they are erased without a trace.
CREATE TABLE IF NOT EXISTS texts (
    position INTEGER NOT NULL,
    digest TEXT NOT NULL,
    run TEXT,
    is_output INTEGER NOT NULL,
    salt BLOB NOT NULL,
    words BLOB NOT NULL,
    PRIMARY KEY (position, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS texts_run ON texts (run, position) WHERE run IS NOT NULL;

CREATE TABLE IF NOT EXISTS idempotency (
    principal TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    key TEXT NOT NULL,
    body_digest TEXT NOT NULL,
    status INTEGER NOT NULL,
    answer BLOB NOT NULL,
    position INTEGER NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (principal, method, path, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_created ON idempotency (created);

-- Inner nodes of the tree over the facts' leaf hashes, every fourth level: no proof has to hash more than 16 of them
-- for each of its steps.
CREATE TABLE IF NOT EXISTS nodes (
    level INTEGER NOT NULL,
    number INTEGER NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (level, number)
) WITHOUT ROWID;

-- One row: where the log ends, and what proves it: the right edge of the tree, the chain's last MAC, who signs, and
-- the newest checkpoint. Whoever writes holds it.
CREATE TABLE IF NOT EXISTS head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    position INTEGER NOT NULL,
    edge BLOB NOT NULL DEFAULT x'',
    mac BLOB NOT NULL DEFAULT (zeroblob(32)),
    signer TEXT NOT NULL DEFAULT '',
    note TEXT NOT NULL DEFAULT ''
);
INSERT INTO head (id, position) VALUES (1, 0) ON CONFLICT DO NOTHING;

-- The same facts under the names that the event sourcing library reads by.
CREATE VIEW IF NOT EXISTS stored_events AS
SELECT position AS rowid, stream AS originator_id, version AS originator_version, topic, state FROM events;
