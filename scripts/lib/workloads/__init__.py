"""The five networks of the Collage paper (PACT'22, section 2.5.1) and others, built for `scripts/models`."""
