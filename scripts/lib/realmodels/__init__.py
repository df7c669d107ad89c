"""Real networks from public packages: their files and real inputs."""
