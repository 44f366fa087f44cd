-- All that a batch writes, in one round trip and one statement: it happens as a whole.
WITH facts AS (
    INSERT INTO events (position, stream, version, topic, state, run, run_sequence, root, root_sequence,
                        is_output, command_id, at)
    SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::bytea[], %s::text[], %s::bigint[],
                         %s::text[], %s::bigint[], %s::boolean[], %s::text[], %s::text[])
), words AS (
    INSERT INTO texts (position, digest, run, is_output, salt, words)
    SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::boolean[], %s::bytea[], %s::bytea[])
)
UPDATE head SET position = %s
