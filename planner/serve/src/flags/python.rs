//! Numbers as Python reads them.

/// Python's `int`: `02` is 2, and `1_000` is 1,000.
pub(super) fn python_int(value: &str) -> Option<i64> {
    joined(value.trim())?.parse().ok()
}

/// Python's `float`, which reads `nan` and `inf` too.
pub(crate) fn float(value: &str) -> Option<f64> {
    joined(value.trim())?.parse().ok()
}

/// Without the underscores that Python takes between two digits; none where there is another.
fn joined(value: &str) -> Option<String> {
    let bytes = value.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let fits = |at: usize| bytes[at] != b'_' || is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    (0..bytes.len()).all(fits).then(|| value.replace('_', ""))
}
