-- Words in a table that is only appended to, and erased in place: zeroes of the same length for words and salt. Where rows are
-- deleted, or put between others, SQLite moves what is near them from page to page and leaves copies behind, in no row,
-- that no later deletion finds. Here no row ever moves. The index may move: it holds no words.
CREATE TABLE kept_texts (
    id INTEGER PRIMARY KEY,
    position INTEGER NOT NULL,
    digest TEXT NOT NULL,
    run TEXT,
    is_output INTEGER NOT NULL,
    salt BLOB NOT NULL,
    words BLOB NOT NULL
);
CREATE UNIQUE INDEX kept_texts_digest ON kept_texts (position, digest);
INSERT INTO kept_texts (position, digest, run, is_output, salt, words)
SELECT position, digest, run, is_output, salt, words FROM texts ORDER BY position, digest;
-- All its pages are zeroed (secure_delete), and with them the copies in them.
DROP TABLE texts;

-- What is not erased. Both must be zeroes: nobody hides words by changing the salt alone.
CREATE VIEW texts AS
SELECT position, digest, run, is_output, salt, words FROM kept_texts
WHERE salt <> zeroblob(length(salt)) OR words <> zeroblob(length(words));
