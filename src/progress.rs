//! A spinner for what takes longer than a second, on stderr, only on a terminal.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;

const PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// Runs `work` and shows `message` while it lasts.
pub(crate) fn during<T>(message: &'static str, work: impl FnOnce() -> T) -> T {
    let (done, wait) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Draws nothing where stderr is no terminal.
                let bar = ProgressBar::new_spinner().with_message(message);
                bar.enable_steady_tick(TICK);
                // Nothing is ever sent: this ends when `work` has returned or panicked and `done` is dropped.
                let _ = wait.recv();
                bar.finish_and_clear();
            }
        });
        let result = work();
        drop(done);
        result
    })
}
