"""What a plan cannot be, before anything is started."""
