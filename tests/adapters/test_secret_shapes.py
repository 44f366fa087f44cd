"""Known secrets leave no trace, everything else stays as it was, and no text is slow."""

import json

import pytest

from steersman.domain.redaction.secret_shapes import redact

SECRETS = [
    "steersman_" + "aB1-_" * 8 + "x9Z",
    "ghp_" + "a1B2" * 9,
    "gho_" + "a1B2" * 9,
    "github_pat_11ABCDEFG0_" + "xY9" * 12,
    "sk-proj-abcdefghij1234567890",
    "sk-ant-api03-abcDEF_123456789-xyz",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefGHIJ",
    "AIza" + "Sy0-_" * 7,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEabc\nxyz=\n-----END RSA PRIVATE KEY-----",
    "glpat-" + "a1B2c-" * 4,
    "npm_" + "a1B2" * 9,
    "sk_live_" + "a1B2" * 6,
    "rk_live_" + "a1B2" * 6,
    "sk-" + "0a1b2c3d" * 4,
    "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXk\\n-----END OPENSSH PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "use {} now", 'x = "{}"', "say:{}, then", "é{}\n"])
def test_a_secret_is_replaced_and_its_surroundings_stay(secret: str, around: str) -> None:
    assert redact(around.format(secret)) == around.format("[redacted]")


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("nested", [1, 2, 3])
@pytest.mark.parametrize("around", ["line\n{}\nnext", '{{"x": "{}"}}', "\t{}\t", "é{}"])
def test_a_secret_in_json_that_stands_in_json_is_replaced(secret: str, around: str, nested: int) -> None:
    written, stored = around.format(secret), around.format("[redacted]")
    for _ in range(nested):
        written, stored = json.dumps({"content": written}), json.dumps({"content": stored})
    assert redact(written) == stored


@pytest.mark.parametrize("nested", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('{"api_key": "Abcd1234efgh5678", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ('password = "it\'s a secret"\nx = 1', 'password = "[redacted]"\nx = 1'),
        ("export TOKEN='two words'; ls", "export TOKEN='[redacted]'; ls"),
        ("DB_PASSWORD=hunter2\nDB_HOST=h", "DB_PASSWORD=[redacted]\nDB_HOST=h"),
        ("password: hunter22\nuser: me", "password: [redacted]\nuser: me"),
        ('{"Authorization": "Basic dXNlcjpwYXNz"}', '{"Authorization": "Basic [redacted]"}'),
        ("\nbearer abcdefghijklmnop1\n", "\nbearer [redacted]\n"),
        ('secret: words\nline 2: print("secret: ")\nend("x1")', 'secret: words\nline 2: print("secret: ")\nend("x1")'),
        ("https://me:pw@host/x\ny@z", "https://[redacted]@host/x\ny@z"),
    ],
)
def test_names_show_their_secrets_in_json_as_they_do_outside(text: str, stored: str, nested: int) -> None:
    for _ in range(nested):
        text, stored = json.dumps({"content": text}), json.dumps({"content": stored})
    assert redact(text) == stored
    assert nested == 0 or json.loads(redact(text))


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Authorization: Bearer abc123abc123", "Authorization: Bearer [redacted]"),
        ("curl -H 'authorization: Basic dXNlcjpwYXNz' x", "curl -H 'authorization: Basic [redacted]' x"),
        ("sent bearer abcdefghijklmnop1", "sent bearer [redacted]"),
        ("password=hunter2", "password=[redacted]"),
        ("DB_PASSWORD='a b c d'", "DB_PASSWORD='[redacted]'"),
        ('{"token": "abcd1234", "n": 1}', '{"token": "[redacted]", "n": 1}'),
        ("client_secret=abc123&x=1", "client_secret=[redacted]&x=1"),
        ("password: hunter22", "password: [redacted]"),
        ("https://me:pw@host/x", "https://[redacted]@host/x"),
        ("postgresql://u:p%40@h/db", "postgresql://[redacted]@h/db"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut off", "[redacted]"),
        ('{"password":"ab\\"cd12345678", "n": 1}', '{"password":"[redacted]", "n": 1}'),
        ('{"content": "x = {\\"password\\": \\"ab1234', '{"content": "x = {\\"password\\": \\"[redacted]'),
        ("DB_PASS=hunter2", "DB_PASS=[redacted]"),
        ("signing_key: 'abcd'", "signing_key: '[redacted]'"),
        ("postgres://user:ab/cd12345@host/x", "postgres://[redacted]@host/x"),
        ("postgres://user:ab@cd12345@host/x", "postgres://[redacted]@host/x"),
        ("https://0a1b2c3d4e5f6a7b@host/x", "https://[redacted]@host/x"),
        (
            "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXX",
            "https://hooks.slack.com/services/[redacted]",
        ),
    ],
)
def test_what_a_secret_is_for_stays_readable(text: str, stored: str) -> None:
    assert redact(text) == stored
    assert redact(stored) == stored, "redacting twice changes nothing more"


@pytest.mark.parametrize(
    "text",
    [
        "token = get_token()",
        "token = os.environ['X']",
        "def login(password: str) -> None:",
        "if token == other_value:",
        "max_tokens=4096",
        "sk-learn-is-a-nice-library-yes",
        "sk-learn-is-a-nice-lib-for-2024-models",
        "ssh://git@github.com/x",
        "ssh://deploy@host",
        "http://localhost:8080/@types/node",
        "see http://x.y?q=a@b",
        "3 tests pass: all of them",
        "npm_config_registry=x",
        "the secret: be kind",
        "AKIA is a prefix, and ghp_ is one",
        "plain words, ünï \U0001f600",
    ],
)
def test_code_and_prose_about_secrets_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "seed",
    [
        "sk-", "eyJ", "-eyJ", "a.eyJaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "password=", "password: ", "password='",
        "authorization: ", "bearer ", "://", "://a@", "xoxb-", "token:a", "key: 'a", " ", "-----BEGIN PRIVATE KEY-----\n-----END ",
        "://a:", "sk-a1a1a1a-", 'password=\\"', "password=\\", 'token="\\"', "\\neyJaaaaaaaaa.", "glpat-",
    ],
)  # fmt: skip
def test_a_megabyte_made_to_be_slow_is_not(seed: str) -> None:
    # Quadratic time would be hours here: the suite's timeout would end it.
    redact(seed * (1_000_000 // len(seed)))


@pytest.mark.parametrize("end", ["(", '"', "\\"])
def test_a_megabyte_that_is_no_secret_at_its_very_end_is_not_slow(end: str) -> None:
    redact("password=" * 100_000 + end)
