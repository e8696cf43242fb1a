"""What people see of measurements: terminal, pages."""
