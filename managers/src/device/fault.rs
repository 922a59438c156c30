//! Device failures on demand, for tests; nothing in any other build.

use crate::device::error::Result;

#[cfg(test)]
thread_local! {
    /// Pool operations of this thread until the device fails, and whether it goes on failing.
    static FAULT: std::cell::Cell<Option<(usize, bool)>> = const { std::cell::Cell::new(None) };
}

/// Stands in front of every pool operation.
#[cfg(test)]
pub(super) fn check() -> Result<()> {
    match FAULT.get() {
        Some((0, lasting)) => {
            FAULT.set(lasting.then_some((0, true)));
            Err(candle_core::Error::Msg("injected".into()).into())
        }
        left => {
            FAULT.set(left.map(|(left, lasting)| (left - 1, lasting)));
            Ok(())
        }
    }
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn check() -> Result<()> {
    Ok(())
}

/// Runs `body` with a device that fails from its pool operation number `working` on.
#[cfg(test)]
pub(super) fn after<R>(working: usize, body: impl FnOnce() -> R) -> R {
    inject((working, true), body)
}

/// Runs `body` with a device that fails once, at its pool operation number `working`.
#[cfg(test)]
pub(super) fn during<R>(working: usize, body: impl FnOnce() -> R) -> R {
    inject((working, false), body)
}

#[cfg(test)]
fn inject<R>(fault: (usize, bool), body: impl FnOnce() -> R) -> R {
    FAULT.set(Some(fault));
    let result = body();
    FAULT.set(None);
    result
}
