"""The services of the end-to-end tests, for tests that kill them."""

from steersman.tests.e2e.conftest import repository, service, store

__all__ = ["repository", "service", "store"]
