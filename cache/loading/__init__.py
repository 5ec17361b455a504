"""From verified bytes to a callable with checked inputs."""
