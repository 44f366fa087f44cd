-- All that a batch writes, in one round trip and one statement: it happens as a whole.
WITH facts AS (
    INSERT INTO events (position, stream, version, topic, state, run, run_sequence, root, root_sequence,
                        is_output, command_id, at, leaf_hash, mac)
    SELECT * FROM unnest(%b::bigint[], %b::text[], %b::bigint[], %b::text[], %b::bytea[], %b::text[], %b::bigint[],
                         %b::text[], %b::bigint[], %b::boolean[], %b::text[], %b::text[],
                         %b::bytea[], %b::bytea[])
), words AS (
    INSERT INTO texts (position, digest, run, is_output, salt, words)
    SELECT * FROM unnest(%b::bigint[], %b::text[], %b::text[], %b::boolean[], %b::bytea[], %b::bytea[])
), tree AS (
    INSERT INTO nodes (level, number, hash) SELECT * FROM unnest(%b::integer[], %b::bigint[], %b::bytea[])
)
UPDATE head SET position = %s, edge = %b, mac = %b, signer = %s, note = %s
