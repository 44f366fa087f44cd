-- All that numbering a batch has to know, in one round trip; each part is an index look-up for each name.
SELECT 'stream' AS kind, name, (SELECT max(version) FROM events WHERE stream = name) AS number,
       NULL::text AS run, NULL::bytea AS state
FROM unnest(%(streams)b::text[]) AS name
UNION ALL
SELECT 'run', name, (SELECT max(run_sequence) FROM events WHERE run = name), NULL, NULL
FROM unnest(%(runs)b::text[]) AS name
UNION ALL
SELECT 'root', name, (SELECT max(root_sequence) FROM events WHERE root = name), NULL, NULL
FROM unnest(%(roots)b::text[]) AS name
UNION ALL
SELECT 'command', name, found.position, found.run, found.state
FROM unnest(%(commands)b::text[]) AS name,
     -- OFFSET keeps it a look-up for each name: as a join, a plan from when the log was short reads all of a long one.
     LATERAL (SELECT position, run, state FROM events WHERE command_id = name OFFSET 0) AS found
UNION ALL
SELECT 'lease', name, (SELECT epoch FROM leases WHERE root = name), NULL, NULL
FROM unnest(%(leases)b::text[]) AS name
