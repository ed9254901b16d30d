"""Container engines, ssh, and other doors that stay shut."""
