//! Calls into libraries that take their files for well-meant: where they panic, an error comes back.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// What `call` gives, or what it panicked with. What it has changed must not be used after a panic.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    quiet();
    let was = IS_GUARDED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(was);
    result.map_err(|panic| format!("the library that reads it failed: {}", message(&*panic)))
}

/// Panics that become errors are not printed; all others are, as the process prints them.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                print(panic);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_next_call_is_as_any() {
        let index = std::hint::black_box(3);
        assert_eq!(
            guarded(|| [1, 2][index]).unwrap_err(),
            "the library that reads it failed: index out of bounds: the len is 2 but the index is 3"
        );
        assert_eq!(guarded(|| 1), Ok(1));
    }
}
