-- The answers to all requests of a batch. Only an expired one can be there already: the younger ones were found before.
INSERT INTO idempotency (principal, method, path, key, body_digest, status, answer, position, created)
SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::integer[], %b::bytea[],
                     %b::bigint[], %b::text[])
ON CONFLICT (principal, method, path, key) DO UPDATE SET
    body_digest = excluded.body_digest, status = excluded.status, answer = excluded.answer,
    position = excluded.position, created = excluded.created
