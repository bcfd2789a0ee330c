"""What two or more families really share."""
