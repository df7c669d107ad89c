"""The seeded decoders of ``scripts/models`` in the forms that other systems read."""
