//! A spinner or a bar for what takes longer than a second, on stderr, only on a terminal.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// Runs `work` and shows `message` while it lasts.
pub(crate) fn during<T>(message: &'static str, work: impl FnOnce() -> T) -> T {
    during_bytes(message, || (0, 0), work)
}

/// The same with a bar, once `bytes` says how many of how many are done.
pub(crate) fn during_bytes<T>(
    message: &'static str,
    bytes: impl Fn() -> (u64, u64) + Send,
    work: impl FnOnce() -> T,
) -> T {
    let (done, wait) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            // Draws nothing where stderr is no terminal.
            let bar = ProgressBar::new_spinner().with_message(message);
            // Nothing is ever sent: this ends when `work` has returned or panicked and `done` is dropped.
            while wait.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let (read, all) = bytes();
                if all > 0 && bar.length().is_none() {
                    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes} of {total_bytes}");
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    bar.set_length(all);
                }
                bar.set_position(read.min(all));
                bar.tick();
            }
            bar.finish_and_clear();
        });
        let result = work();
        drop(done);
        result
    })
}
