-- What is decided of a tree, without what its agents say: a fold goes on from the last fact that it has seen.
CREATE INDEX IF NOT EXISTS events_decided ON events (root, root_sequence) WHERE root IS NOT NULL AND NOT is_output;
