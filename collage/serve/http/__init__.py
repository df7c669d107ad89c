"""The server: an OpenAI-compatible API in one process, in front of an engine in another."""
