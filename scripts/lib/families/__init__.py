"""The parts of `decoder_families`: small decoders of many families, exported, compiled and compared."""
