//! The border to the Parquet decoder: its errors by file, its panics as errors.
//!
//! The decoder (parquet 60.1) asserts on some damaged pages: for example a bit-packed run of
//! definition levels that is shorter than its length says ends in "offset + len out of bounds" in
//! arrow-buffer. [`crate::guard`] cannot see into compressed pages, so this is the one place where a
//! panic is caught. Nothing of ours runs inside, and a decoder that panicked is dropped.

use crate::StoreError;
use parquet::errors::ParquetError;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

static QUIET: Once = Once::new();

/// Runs a call into the decoder.
pub(crate) fn call<T>(
    path: &Path,
    doing: &'static str,
    run: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, StoreError> {
    QUIET.call_once(|| {
        // A damaged file is reported once, as an error: not as a panic on the terminal first.
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !DECODING.get() {
                before(info);
            }
        }));
    });
    let outer = DECODING.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    DECODING.set(outer);
    match result {
        Ok(result) => result.map_err(StoreError::parquet(path, doing)),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            Err(StoreError::Parquet {
                path: path.to_owned(),
                problem: format!("a page is damaged: {}", text.unwrap_or("the decoder gave up")),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic, reason = "the panic is what is tested")]
    fn a_panic_of_the_decoder_is_an_error_of_the_file() {
        let path = Path::new("steps.parquet");
        let result: Result<(), StoreError> = call(path, "read", || panic!("out of bounds"));
        let error = result.unwrap_err();
        assert!(!error.is_environment());
        assert!(
            error.to_string().contains("steps.parquet") && error.to_string().contains("out of")
        );
        assert_eq!(call(path, "read", || Ok(3)).unwrap(), 3);
    }
}
