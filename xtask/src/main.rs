//! Set-up and tests in one command.
fn main() {}
