//! Ctrl-C: once ends what is going on in order, twice ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cacheplan::runtime::Admission;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// Listens from its making on.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let heard = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The first of the two looks before the second has set it.
            flag::register_conditional_default(signal, Arc::clone(&heard)).map_err(Failure::error)?;
            flag::register(signal, Arc::clone(&heard)).map_err(Failure::error)?;
        }
        Ok(Self(heard))
    }

    pub(crate) fn heard(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// While nothing is going on, the first Ctrl-C already ends the process.
    pub(super) fn idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let waited = wait();
        self.0.store(false, Ordering::Relaxed);
        waited
    }

    /// What a run is told once it was heard.
    pub(super) fn then(&self, admission: Admission) -> impl FnMut() -> Admission {
        move || if self.heard() { admission } else { Admission::Open }
    }
}
