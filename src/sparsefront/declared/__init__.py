"""Settings that declare what each field may hold: pydantic checks it, and one line says what it rejects."""
