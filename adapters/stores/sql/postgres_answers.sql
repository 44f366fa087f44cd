-- The answers, younger than a moment, to all requests of a batch that were answered before: an index look-up for each.
SELECT found.principal, found.method, found.path, found.key,
       found.body_digest, found.status, found.answer, found.position
FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[]) AS asked (principal, method, path, key),
     LATERAL (SELECT * FROM idempotency
              WHERE idempotency.principal = asked.principal AND idempotency.method = asked.method
                AND idempotency.path = asked.path AND idempotency.key = asked.key OFFSET 0) AS found
WHERE found.created > %s
