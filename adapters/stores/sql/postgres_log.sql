-- The event log in PostgreSQL. Times are text as in the envelope, so that their order is the order of time.

-- Replicas that start together make the tables one after the other.
SELECT pg_advisory_xact_lock(hashtext('steersman event log'));

CREATE TABLE IF NOT EXISTS events (
    position bigint PRIMARY KEY,
    stream text NOT NULL,
    version bigint NOT NULL,
    topic text NOT NULL,
    state bytea NOT NULL,
    run text,
    run_sequence bigint,
    root text,
    root_sequence bigint,
    is_output boolean NOT NULL DEFAULT false,
    command_id text,
    at text,
    leaf_hash bytea NOT NULL,
    mac bytea
);
CREATE UNIQUE INDEX IF NOT EXISTS events_stream ON events (stream, version);
CREATE UNIQUE INDEX IF NOT EXISTS events_run ON events (run, run_sequence) WHERE run IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS events_root ON events (root, root_sequence) WHERE root IS NOT NULL;
-- What is decided of a tree: whoever folds it on must not walk all that its agents said since. (Step 2, too.)
CREATE INDEX IF NOT EXISTS events_decided ON events (root, root_sequence) WHERE root IS NOT NULL AND NOT is_output;
CREATE INDEX IF NOT EXISTS events_command ON events (command_id) WHERE command_id IS NOT NULL;

CREATE TABLE IF NOT EXISTS texts (
    position bigint NOT NULL,
    digest text NOT NULL,
    run text,
    is_output boolean NOT NULL,
    salt bytea NOT NULL,
    words bytea NOT NULL,
    PRIMARY KEY (position, digest)
);
CREATE INDEX IF NOT EXISTS texts_run ON texts (run, position) WHERE run IS NOT NULL;

CREATE TABLE IF NOT EXISTS idempotency (
    principal text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    key text NOT NULL,
    body_digest text NOT NULL,
    status integer NOT NULL,
    answer bytea NOT NULL,
    position bigint NOT NULL,
    created text NOT NULL,
    PRIMARY KEY (principal, method, path, key)
);
CREATE INDEX IF NOT EXISTS idempotency_created ON idempotency (created);

-- Inner nodes of the tree over the facts' leaf hashes, every fourth level: no proof has to hash more than 16 of them
-- for each of its steps.
CREATE TABLE IF NOT EXISTS nodes (
    level integer NOT NULL,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (level, number)
);

-- One row: where the log ends, and what proves it: the right edge of the tree, the chain's last MAC, who signs, and
-- the newest checkpoint. Whoever writes locks it, so that commit order is position order. It is rewritten
-- by every commit: half-empty pages let the new version stand beside the old one, in no index.
CREATE TABLE IF NOT EXISTS head (
    id integer PRIMARY KEY CHECK (id = 1),
    position bigint NOT NULL,
    edge bytea NOT NULL DEFAULT '',
    mac bytea NOT NULL DEFAULT (decode(repeat('00', 32), 'hex')),
    signer text NOT NULL DEFAULT '',
    note text NOT NULL DEFAULT ''
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
INSERT INTO head (id, position) VALUES (1, 0) ON CONFLICT DO NOTHING;

-- Who drives which run, on this server's clock. A lease lives as long as its replica renews itself; each claim raises the
-- run's epoch, and appends under an older one are refused in their own transaction.
CREATE TABLE IF NOT EXISTS replicas (
    replica text PRIMARY KEY,
    renewed timestamptz NOT NULL,
    machine text NOT NULL,
    process text NOT NULL,
    draining boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS leases (
    root text PRIMARY KEY,
    epoch bigint NOT NULL,
    replica text,
    is_open boolean NOT NULL DEFAULT true,
    effects bytea NOT NULL DEFAULT '[]'
);
CREATE INDEX IF NOT EXISTS leases_open ON leases (root) WHERE is_open;

-- The data directory that the replicas share.
CREATE TABLE IF NOT EXISTS home (
    id integer PRIMARY KEY CHECK (id = 1),
    home_id text NOT NULL
);

-- The same facts under the names that the event sourcing library reads by.
CREATE OR REPLACE VIEW stored_events AS
SELECT stream AS originator_id, version AS originator_version, topic, state, position AS notification_id FROM events;
