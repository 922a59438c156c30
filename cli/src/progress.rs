//! A spinner or a bar for what takes longer than a second, on stderr, only on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use cacheplan::planner::ByteSize;

const PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// Characters of a bar.
const WIDTH: usize = 30;

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
            if !stderr().is_terminal() || wait.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let mut turns = ["|", "/", "-", "\\"].iter().cycle();
            // Nothing is ever sent: this ends when `work` has returned or panicked and `done` is dropped.
            while wait.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                match bytes() {
                    (_, 0) => draw(&format!("{} {message}", turns.next().unwrap_or(&""))),
                    (read, all) => draw(&bar(message, read.min(all), all)),
                }
            }
            draw("");
        });
        let result = work();
        drop(done);
        result
    })
}

fn bar(message: &str, done: u64, all: u64) -> String {
    let filled = "=".repeat((done as f64 / all as f64 * WIDTH as f64) as usize);
    format!("{message} [{filled:WIDTH$}] {} of {}", ByteSize(done), ByteSize(all))
}

/// In place of what was drawn before; where nobody sees it, there is nobody to tell.
fn draw(line: &str) {
    let mut stderr = stderr().lock();
    let _ = write!(stderr, "\r\x1b[2K{line}").and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(0, "weights [                              ] 0 B of 2.00 GiB")]
    #[case(1 << 30, "weights [===============               ] 1.00 GiB of 2.00 GiB")]
    #[case(2 << 30, "weights [==============================] 2.00 GiB of 2.00 GiB")]
    fn a_bar_is_as_long_as_what_is_done(#[case] done: u64, #[case] shown: &str) {
        assert_eq!(bar("weights", done, 2 << 30), shown);
    }
}
