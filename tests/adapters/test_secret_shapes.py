"""Known secrets leave no trace, everything else stays as it was, and no text is slow."""

import pytest

from steersman.adapters.secret_shapes import redact

SECRETS = [
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
    "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXk\\n-----END OPENSSH PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "use {} now", 'x = "{}"', "say:{}, then", "é{}\n"])
def test_a_secret_is_replaced_and_its_surroundings_stay(secret: str, around: str) -> None:
    assert redact(around.format(secret)) == around.format("[redacted]")


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
        "ssh://git@github.com/x",
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
    ],
)  # fmt: skip
def test_a_megabyte_made_to_be_slow_is_not(seed: str) -> None:
    # Quadratic time would be hours here: the suite's timeout would end it.
    redact(seed * (1_000_000 // len(seed)))
