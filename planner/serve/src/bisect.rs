//! Searches by halves.

/// The largest number up to `cap` for which `holds`, which must be monotone; 0 if it holds for none above.
pub(crate) fn last(cap: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, cap);
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
