"""n weights kept of every m consecutive inputs."""
