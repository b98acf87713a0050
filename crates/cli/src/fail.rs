//! Failures as a product: a sentence, its chain of causes, a hint, an exit code.

use std::fmt;
use std::process::ExitCode;

/// What a verb found, where it worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Done; a verdict, where there is one, is positive.
    Positive,
    /// Rejected, check failed, cause found, do nothing, need more data.
    Negative,
}

impl Finding {
    /// Positive where `good`.
    pub(crate) fn from_good(good: bool) -> Self {
        if good { Self::Positive } else { Self::Negative }
    }
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Input,
    Environment,
    /// The reader of stdout went away (`evenkeel … | head`): no failure at all.
    BrokenPipe,
}

/// Why a verb did not work.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

/// What verbs return.
pub(crate) type Verdict = Result<Finding, Failure>;

impl Failure {
    /// Bad usage or input (exit code 2).
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self { kind: Kind::Input, message: message.to_string(), hint: None }
    }

    /// Disk, permission, memory (exit code 3).
    pub(crate) fn environment(message: impl fmt::Display) -> Self {
        Self { kind: Kind::Environment, message: message.to_string(), hint: None }
    }

    /// Adds the remedy.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts what was tried, usually a file, before the message.
    #[must_use]
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// A trace that cannot be read or written: the store says whose fault it is, and the remedy.
    pub(crate) fn store(error: evenkeel_store::StoreError) -> Self {
        let kind = if error.is_environment() { Kind::Environment } else { Kind::Input };
        Self { kind, message: error.to_string(), hint: error.hint() }
    }

    /// A failed read or write of `what`. A missing file is the user's input; the rest is the
    /// machine's.
    pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => {
                Self { kind: Kind::BrokenPipe, message: String::new(), hint: None }
            }
            std::io::ErrorKind::NotFound => Self::input(format!("{what}: {error}")),
            _ => Self::environment(format!("{what}: {error}")),
        }
    }

    /// What went wrong, without the hint.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if self.kind == Kind::BrokenPipe {
            return ExitCode::SUCCESS;
        }
        crate::out::complain(&format!("error: {}", self.message));
        if let Some(hint) = &self.hint {
            crate::out::complain(&format!("hint: {hint}"));
        }
        ExitCode::from(if self.kind == Kind::Environment { 3 } else { 2 })
    }
}
